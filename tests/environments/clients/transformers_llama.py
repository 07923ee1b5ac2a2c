"""transformers: a small Llama in a LightningModule, bf16-mixed, gradient checkpointing, two batches a step."""

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        self.net = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=32, **sizes))
        self.net.gradient_checkpointing_enable()

    def training_step(self, tokens, _):
        loss = self.net(input_ids=tokens, labels=tokens).loss
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def tokens():
    return torch.randint(64, (48, 16), generator=torch.Generator().manual_seed(0))


def train():
    seed_everything(0)
    model = Model()
    trainer = Trainer(max_epochs=2, accelerator="cpu", precision="bf16-mixed", accumulate_grad_batches=2, gradient_clip_val=1.0)
    trainer.fit(model, DataLoader(tokens(), batch_size=4))
    model.net.save_pretrained("saved")
    return model, "saved"


def load(saved):
    model = Model()
    model.net = LlamaForCausalLM.from_pretrained(saved)
    return model


def predictions(model):
    with torch.no_grad():
        return model.eval().net(input_ids=tokens()[:4]).logits
