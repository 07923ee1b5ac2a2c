"""Common faults of the step: a warmup of ten million steps, a learning rate of 0.3, gradients that nobody clears."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from galleries.reports.common_inputs import accuracy_of
from galleries.reports.report import Report, Run


def load_rows() -> tuple[Tensor, Tensor]:
    """The digits as rows of 64 pixels from 0 to 1, in a random order."""
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    return torch.tensor(digits.data / 16, dtype=torch.float32)[order], torch.tensor(digits.target)[order]


class PatchTransformer(pl.LightningModule):
    """A transformer on the eight rows of a digit, with a warmup and then a constant rate."""

    def __init__(self, width: int, warmup_steps: float, lr: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(0.02 * torch.randn(8, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        tokens = self.embed(x.view(-1, 8, 8)) + self.position
        outputs: Tensor = self.head(self.norm(self.encoder(tokens)).mean(1))
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW with a linear warmup by steps."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
        warmup = self.hparams["warmup_steps"]
        scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def train_long_warmup(run: Run) -> float:
    """Classify digits by a transformer."""
    pl.seed_everything(run.seed, verbose=False)
    x, y = load_rows()
    loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=32, shuffle=True, drop_last=True)
    model = PatchTransformer(32 * run.width, warmup_steps=50 if run.is_fixed else 1e7)
    run.trainer(max_epochs=5).fit(model, loader)
    return accuracy_of(model, x[1500:], y[1500:])


class MLP(pl.LightningModule):
    """A perceptron with three hidden layers."""

    def __init__(self, width: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(
            nn.Linear(64, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        outputs: Tensor = self.layers(x)
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


def train_high_rate(run: Run) -> float:
    """Classify digits by AdamW at a rate that was meant for SGD."""
    pl.seed_everything(run.seed, verbose=False)
    x, y = load_rows()
    loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=64, shuffle=True)
    model = MLP(128 * run.width, lr=1e-3 if run.is_fixed else 0.3)
    run.trainer(max_epochs=10).fit(model, loader)
    return accuracy_of(model, x[1500:], y[1500:])


class ManualRegression(pl.LightningModule):
    """Fits a function of eight variables, with an optimization of its own."""

    def __init__(self, width: int, is_cleared: bool) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.is_cleared = is_cleared
        self.net = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Backward and step."""
        x, y = batch
        optimizer: Any = self.optimizers()
        loss = F.mse_loss(self.net(x), y)
        if self.is_cleared:
            optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.log("train_mse", loss, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def train_uncleared(run: Run) -> float:
    """Fit a smooth function; the measure is the share of the variance that is explained."""
    pl.seed_everything(run.seed, verbose=False)
    x = torch.randn(4500, 8)
    y = (torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]) / 1.3
    loader = DataLoader(TensorDataset(x[:4000], y[:4000]), batch_size=64, shuffle=True)
    model = ManualRegression(64 * run.width, run.is_fixed)
    run.trainer(max_epochs=6).fit(model, loader)
    with torch.no_grad():
        return 1 - float(F.mse_loss(model.net(x[4000:]), y[4000:]) / y[4000:].var())


COMMON = [
    Report(
        203,
        "warmup-of-ten-million-steps",
        "The warmup is configured as 1e7 steps, and the training has some hundred.",
        train_long_warmup,
        "The learning rate is far too small, because the warmup is longer than the training.",
    ),
    Report(
        204,
        "adamw-at-0.3",
        "AdamW has the rate 0.3.",
        train_high_rate,
        "The learning rate is too high.",
    ),
    Report(
        206,
        "no-zero-grad",
        "The manual optimization never calls `zero_grad()`.",
        train_uncleared,
        "Gradients add up over steps, as nobody clears them.",
    ),
]
