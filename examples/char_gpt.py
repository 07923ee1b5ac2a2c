"""A small character-level GPT on the text of Python's own standard library.

From Python: `python -m examples.char_gpt`. From YAML: `lightning-hooks fit --config configs/char_gpt.yaml`.

Shapes: B batch, T positions, D width, V characters.
"""

import sysconfig
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 128  # ASCII; what is not ASCII reads as "?"


class CausalSelfAttention(nn.Module):
    """Each position attends to itself and to those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        batch, length, width = x_BTD.shape
        q, k, v = self.qkv(x_BTD).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    """Two linear layers, four times as wide in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(self.act(self.up(x_BTD)))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.dropout(self.attn(self.norm1(x_BTD)))
        return x_BTD + self.dropout(self.mlp(self.norm2(x_BTD)))


class CharGPT(LightningModule):
    """Predicts the next character.

    Args:
        layers: number of transformer blocks.
        width: width of the residual stream.
        heads: attention heads of a block; divides `width`.
        context: the most characters it can look back on.
        dropout: probability of dropping a value on the way into the residual stream.
        lr: learning rate of AdamW.
    """

    def __init__(
        self,
        layers: int = 3,
        width: int = 64,
        heads: int = 4,
        context: int = 64,
        dropout: float = 0.1,
        lr: float = 2e-3,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.embed = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, text_BT: Tensor) -> Tensor:
        positions_T = torch.arange(text_BT.shape[1], device=text_BT.device)
        x_BTD = self.embed(text_BT) + self.position(positions_T)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross-entropy in nats a character."""
        text_BT, next_BT = batch
        logits_BTV = self(text_BT)
        return F.cross_entropy(logits_BTV.flatten(0, 1), next_BT.flatten())

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Windows(Dataset):
    """Windows of a text that follow each other: (characters, the same one further), each of `context` characters."""

    def __init__(self, text: Tensor, context: int) -> None:
        self.text = text
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.context
        window = self.text[start : start + self.context + 1].long()
        return window[:-1], window[1:]


class PythonSource(LightningDataModule):
    """The source text of Python's standard library; the last tenth is for validation.

    Args:
        batch_size: windows in a batch.
        context: characters in a window; at most the `context` of the model.
        max_bytes: how much text to read, in bytes.
    """

    def __init__(self, batch_size: int = 32, context: int = 64, max_bytes: int = 2_000_000) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.context = context
        self.max_bytes = max_bytes

    def setup(self, stage: str) -> None:
        source = bytearray()
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
            if len(source) >= self.max_bytes:
                break
            source += path.read_text(encoding="utf-8", errors="replace").encode("ascii", errors="replace")
        text = torch.frombuffer(source[: self.max_bytes], dtype=torch.uint8)
        split = len(text) * 9 // 10
        self.train = Windows(text[:split], self.context)
        self.val = Windows(text[split:], self.context)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, self.batch_size)


def main() -> None:
    from lightning_hooks import Apply, GradientTransforms, StatsMonitor, Watch
    from lightning_hooks.transforms import ClipByGlobalNorm

    seed_everything(0)
    trainer = Trainer(
        max_steps=150,
        limit_val_batches=10,
        accelerator="cpu",
        devices=1,
        logger=TensorBoardLogger("runs", name="char_gpt_python", version=""),
        callbacks=[
            StatsMonitor(
                watch=[
                    Watch(modules="blocks.*", types="Block", tensors=["output", "output_grad"], stats=["rms", "abs_max"]),
                    Watch(params="*.weight", tensors=["param", "grad", "update"], stats=["norm"]),
                ],
                every_n_steps=5,
            ),
            GradientTransforms(apply=[Apply(ClipByGlobalNorm(max_norm=1.0), params="*")]),
        ],
    )
    trainer.fit(CharGPT(), PythonSource())


if __name__ == "__main__":
    main()
