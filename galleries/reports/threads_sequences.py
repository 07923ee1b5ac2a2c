"""Threads on sequences: which axis they lie along."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from galleries.reports.report import Report, Run


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images of 8 x 8 and their labels: of 1,300 to train with, and the others."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32) / 8 - 1
    y = torch.tensor(data.target)
    return x[:1300], y[:1300], x[1300:], y[1300:]


class VisionTransformer(LightningModule):
    """A ViT with patches of 2 x 2 that classifies by a token of its own."""

    def __init__(self, run: Run, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, dim, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.position = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        if run.is_fixed:
            layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, activation="gelu", norm_first=True, batch_first=True)
        else:
            layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, activation="gelu", norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the ten digits."""
        patches = self.embed(images.unsqueeze(1)).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.position
        out: Tensor = self.head(self.encoder(x)[:, 0])
        return out

    def training_step(self, batch: Any, _: int) -> Tensor:
        """Cross entropy."""
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW with a cosine."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 220)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train_batch_first(run: Run) -> float:
    """A ViT for digits; the accuracy."""
    torch.manual_seed(run.seed)
    x, y, x_test, y_test = digits()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, drop_last=True)
    module = VisionTransformer(run)
    trainer = run.trainer(max_steps=220, max_epochs=-1)
    trainer.fit(module, loader)
    module.eval()
    with torch.no_grad():
        return float((module(x_test).argmax(1) == y_test).float().mean())


class PositionalEncoding(nn.Module):
    """Sines and cosines of the time step, added to sequences of shape [time, batch, features]."""

    table: Tensor

    def __init__(self, dim: int, longest: int = 200) -> None:
        super().__init__()
        time = torch.arange(longest).unsqueeze(1)
        rates = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        table = torch.zeros(longest, 1, dim)
        table[:, 0, 0::2] = torch.sin(time * rates)
        table[:, 0, 1::2] = torch.cos(time * rates)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        """Adds the time."""
        out: Tensor = x + self.table[: x.size(0)]
        return out


class SeriesClassifier(nn.Module):
    """A transformer over time series of shape [batch, time]."""

    def __init__(self, run: Run, dim: int = 32) -> None:
        super().__init__()
        self.run = run
        self.embed = nn.Linear(1, dim)
        self.time = PositionalEncoding(dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 4)

    def forward(self, series: Tensor) -> Tensor:
        """Scores of the four shapes."""
        x = self.embed(series.unsqueeze(-1))
        if self.run.is_fixed:
            x = self.time(x.transpose(0, 1)).transpose(0, 1)
        else:
            x = self.time(x)
        out: Tensor = self.head(self.encoder(x).mean(1))
        return out


def shapes(count: int, length: int = 24) -> tuple[Tensor, Tensor]:
    """Noisy series that rise, fall, have a peak in the middle or a valley."""
    time = torch.linspace(-1, 1, length)
    curves = torch.stack([time, -time, 1 - 2 * time.abs(), 2 * time.abs() - 1])
    labels = torch.randint(4, (count,))
    return curves[labels] * (0.5 + torch.rand(count, 1)) + 0.5 * torch.randn(count, length), labels


def train_time_along_batch(run: Run) -> float:
    """A transformer that tells shapes of time series apart; the accuracy."""
    torch.manual_seed(run.seed)
    loader = DataLoader(TensorDataset(*shapes(3200)), batch_size=32, shuffle=True)
    model = SeriesClassifier(run)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with run.watching(model, optimizer):
        for _ in range(2):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    x, y = shapes(128)
    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


REPORTS = [
    Report(
        14,
        "attention-over-the-batch",
        "A transformer's encoder is made without `batch_first=True` and given sequences of shape [batch, time, features].",
        train_batch_first,
        "`encoder` takes the first axis, the batch of 32, as the sequence: its attention mixes samples and not the 17 "
        "tokens of an image; `batch_first=True` is missing",
    ),
    Report(
        15,
        "time-embedding-along-the-batch",
        "A positional encoding for [time, batch, features] is added to [batch, time, features].",
        train_time_along_batch,
        "`time` adds its encoding along the first axis, which is the batch: all time steps of a series get the same vector, "
        "which depends on the place of the series in the batch; outputs depend on that place, and the order is not seen",
    ),
]
