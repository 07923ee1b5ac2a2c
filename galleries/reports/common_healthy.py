"""Healthy trainings as they are written every day: convolutions, a language model, a head on a frozen backbone."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from galleries.reports.common_inputs import Backbone, accuracy_of
from galleries.reports.common_sequences import train_language_model
from galleries.reports.report import Report, Run


def load_images() -> tuple[Tensor, Tensor]:
    """The digits as images with a channel, in a random order."""
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    return ((images - images.mean()) / images.std())[order], torch.tensor(digits.target)[order]


class ConvNet(pl.LightningModule):
    """Convolutions with batch norm and dropout, trained with one cycle of the rate and validated."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(8 * width, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        outputs: Tensor = self.model(x)
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """The accuracy."""
        x, y = batch
        self.log("val_acc", (self(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> Any:
        """SGD with one cycle."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=self.hparams["steps"])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def train_convolutions(run: Run) -> float:
    """Classify digits."""
    pl.seed_everything(run.seed, verbose=False)
    x, y = load_images()
    loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=32, shuffle=True)
    validation = DataLoader(TensorDataset(x[1400:], y[1400:]), batch_size=64)
    model = ConvNet(16 * run.width, 6 * len(loader))
    run.trainer(max_epochs=6).fit(model, loader, validation)
    return accuracy_of(model, x[1400:], y[1400:])


def train_causal_model(run: Run) -> float:
    """The language model with its mask."""
    return train_language_model(Run(True, run.seed, run.folder, run.watchers, run.width))


class Probe(pl.LightningModule):
    """A new head on a frozen backbone."""

    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False).eval()
        self.head = nn.Sequential(nn.Linear(8 * width, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        with torch.no_grad():
            features = self.backbone(x)
        outputs: Tensor = self.head(features)
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW on the head."""
        return torch.optim.AdamW(self.head.parameters(), lr=2e-3)


def train_probe(run: Run) -> float:
    """Train a backbone on five digits, unwatched, and then a head on the other five."""
    pl.seed_everything(run.seed, verbose=False)
    width = 16 * run.width
    x, y = load_images()
    is_old = y < 5
    backbone = Backbone(width)
    classifier = nn.Sequential(backbone, nn.Linear(8 * width, 5))
    optimizer = torch.optim.Adam(classifier.parameters(), lr=2e-3)
    for _ in range(4):
        for image, label in DataLoader(TensorDataset(x[is_old], y[is_old]), batch_size=32, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(classifier(image), label).backward()
            optimizer.step()
    images, labels = x[~is_old], y[~is_old] - 5
    model = Probe(backbone, width)
    loader = DataLoader(TensorDataset(images[:700], labels[:700]), batch_size=16, shuffle=True)
    run.trainer(max_epochs=6).fit(model, loader)
    return accuracy_of(model, images[700:], labels[700:])


COMMON = [
    Report(213, "convolutions", "Healthy: convolutions with batch norm and one cycle.", train_convolutions, ""),
    Report(214, "language-model", "Healthy: a small transformer predicts characters.", train_causal_model, ""),
    Report(215, "frozen-backbone", "Healthy: a head on a frozen backbone.", train_probe, ""),
]
