"""Common faults of what goes in: pixels as they come from the file, labels in another order, a backbone as it was loaded."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.functional import accuracy

from galleries.reports.report import Report, Run


class DigitCNN(pl.LightningModule):
    """Two convolutions and a classifier, trained by SGD with momentum."""

    def __init__(self, width: int, lr: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(32 * width, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        outputs: Tensor = self.classifier(self.features(x))
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/acc", accuracy(logits, y, task="multiclass", num_classes=10), prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"], momentum=0.9)


def accuracy_of(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of samples that a model classifies as they are."""
    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def train_raw_pixels(run: Run) -> float:
    """Classify images of 256 levels."""
    pl.seed_everything(run.seed, verbose=False)
    digits = load_digits()
    images = torch.tensor(digits.images * 16, dtype=torch.float32).unsqueeze(1)
    if run.is_fixed:
        images = (images - images.mean()) / images.std()
    labels = torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(images[:1500], labels[:1500]), batch_size=32, shuffle=True)
    model = DigitCNN(16 * run.width)
    run.trainer(max_epochs=6).fit(model, loader)
    return accuracy_of(model, images[1500:], labels[1500:])


class TabularNet(pl.LightningModule):
    """A perceptron on rows of a table."""

    def __init__(self, features: int, classes: int, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(features, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        outputs: Tensor = self.net(x)
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01)


def train_shuffled_labels(run: Run) -> float:
    """Classify the points of eight clusters, whose features and labels are shuffled before they are split."""
    pl.seed_everything(run.seed, verbose=False)
    centres = torch.randn(8, 20)
    y = torch.randint(8, (12000,))
    x = centres[y] + 0.9 * torch.randn(12000, 20)
    order = torch.randperm(len(x))
    x = x[order]
    y = y[order] if run.is_fixed else y[torch.randperm(len(y))]
    loader = DataLoader(TensorDataset(x[:10000], y[:10000]), batch_size=64, shuffle=True)
    model = TabularNet(20, 8, 64 * run.width)
    run.trainer(max_epochs=3).fit(model, loader)
    return accuracy_of(model, x[10000:], y[10000:])


class Backbone(nn.Module):
    """A small network of convolutions with batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = self.block(1, width)
        self.layer1 = self.block(width, width)
        self.layer2 = self.block(width, 2 * width)
        self.pool = nn.AdaptiveAvgPool2d(2)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Sequential:
        """A convolution, its norm, dropout and ReLU."""
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.Dropout2d(0.1))

    def forward(self, x: Tensor) -> Tensor:
        """The features."""
        return torch.flatten(self.pool(self.layer2(self.layer1(self.stem(x)))), 1)


def load_backbone(path: Path, width: int) -> Backbone:
    """The backbone with the weights of a file, ready for inference."""
    backbone = Backbone(width)
    backbone.load_state_dict(torch.load(path, weights_only=True))
    return backbone.eval()


class FineTuned(pl.LightningModule):
    """A loaded backbone and a new head, both trained."""

    def __init__(self, backbone: Backbone, width: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        outputs: Tensor = self.head(self.backbone(x))
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def train_loaded_backbone(run: Run) -> float:
    """Fine-tune on scans with another background and contrast than the backbone was trained on."""
    pl.seed_everything(run.seed, verbose=False)
    width, path = 8 * run.width, run.folder / "backbone.pt"
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    torch.save(Backbone(width).state_dict(), path)
    scans = 3 - 2 * images + 0.2 * torch.randn_like(images)
    loader = DataLoader(TensorDataset(scans[:1500], labels[:1500]), batch_size=32, shuffle=True)
    backbone = load_backbone(path, width)
    model = FineTuned(backbone.train() if run.is_fixed else backbone, width)
    run.trainer(max_epochs=6).fit(model, loader)
    return accuracy_of(model, scans[1500:], labels[1500:])


COMMON = [
    Report(
        201,
        "raw-pixels",
        "A network without norms gets pixels from 0 to 256 as they are.",
        train_raw_pixels,
        "The input is not normalised.",
    ),
    Report(
        202,
        "evaluation-mode",
        "The backbone is loaded by a function that ends with `.eval()`, and is trained so.",
        train_loaded_backbone,
        "The backbone is in evaluation mode, so its norms use stored statistics and its dropout is off.",
    ),
    Report(
        207,
        "shuffled-labels",
        "Features and labels are shuffled by different permutations.",
        train_shuffled_labels,
        "The loss stays at chance, as the targets have nothing to do with the inputs.",
    ),
]
