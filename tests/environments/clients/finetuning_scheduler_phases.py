"""finetuning-scheduler: a schedule of its own making, three phases."""

import torch
from finetuning_scheduler import FinetuningScheduler
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, _):
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD((p for p in self.parameters() if p.requires_grad), lr=0.05)


def inputs():
    return torch.randn(96, 8, generator=torch.Generator().manual_seed(0))


def train():
    seed_everything(0)
    data = DataLoader(TensorDataset(inputs(), inputs().sum(1, keepdim=True)), batch_size=16)
    model = Net()
    trainer = Trainer(max_epochs=8, accelerator="cpu", callbacks=[FinetuningScheduler(max_depth=2)])
    trainer.fit(model, data, data)
    trainer.save_checkpoint("last.ckpt")
    return model, "last.ckpt"


def load(saved):
    return Net.load_from_checkpoint(saved)


def predictions(model):
    with torch.no_grad():
        return model.eval()(inputs())
