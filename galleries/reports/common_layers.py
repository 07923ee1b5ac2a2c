"""Common faults of layers: a bias that closes every ReLU, a softmax before the cross entropy, blocks in a plain list."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from galleries.reports.common_inputs import accuracy_of
from galleries.reports.common_steps import load_rows
from galleries.reports.report import Report, Run


class Detector(pl.LightningModule):
    """Tells whether a digit is a seven, with biases for rare positives."""

    def __init__(self, width: int, is_fixed: bool) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(64, width)
        self.hidden2 = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)
        # Positives are rare: begin with a probability of about 2 %.
        for layer in [self.score] if is_fixed else [self.hidden1, self.hidden2, self.score]:
            nn.init.constant_(layer.bias, -4.0)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        outputs: Tensor = self.score(F.relu(self.hidden2(F.relu(self.hidden1(x))))).squeeze(1)
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The binary cross entropy."""
        x, y = batch
        loss = F.binary_cross_entropy_with_logits(self(x), (y == 7).float())
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def train_closed_relus(run: Run) -> float:
    """Detect sevens; the measure is the difference of the mean scores of sevens and others, through tanh."""
    pl.seed_everything(run.seed, verbose=False)
    x, y = load_rows()
    loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=32, shuffle=True)
    model = Detector(64 * run.width, run.is_fixed)
    run.trainer(max_epochs=6).fit(model, loader)
    with torch.no_grad():
        scores = torch.sigmoid(model(x[1500:]))
    return float(scores[y[1500:] == 7].mean() - scores[y[1500:] != 7].mean())


class SoftmaxCNN(pl.LightningModule):
    """Convolutions with batch norm, whose last layer is a softmax."""

    def __init__(self, width: int, is_fixed: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.fc = nn.Linear(8 * width, 10)
        self.softmax = nn.Identity() if is_fixed else nn.Softmax(dim=1)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x: Tensor) -> Tensor:
        """The probabilities."""
        outputs: Tensor = self.softmax(self.fc(self.body(x)))
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        x, y = batch
        loss = self.criterion(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        outputs: Tensor = loss
        return outputs

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def train_softmax_twice(run: Run) -> float:
    """Classify digits; the measure is the mean probability of the right class."""
    pl.seed_everything(run.seed, verbose=False)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)[order]
    labels = torch.tensor(digits.target)[order]
    loader = DataLoader(TensorDataset(images[:1500], labels[:1500]), batch_size=32, shuffle=True)
    model = SoftmaxCNN(8 * run.width, run.is_fixed)
    run.trainer(max_epochs=5).fit(model, loader)
    return accuracy_of(model, images[1500:], labels[1500:])


class Block(nn.Module):
    """A residual block of a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The input and what is added to it."""
        outputs: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return outputs


class ResidualMLP(pl.LightningModule):
    """A stack of residual blocks."""

    def __init__(self, width: int, depth: int, is_fixed: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(12, width)
        blocks = [Block(width) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks) if is_fixed else blocks
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The prediction."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        outputs: Tensor = self.head(x)
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The squared error."""
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def train_plain_list(run: Run) -> float:
    """Fit a function of twelve variables; the measure is the share of the variance that is explained."""
    pl.seed_everything(run.seed, verbose=False)
    x = torch.rand(4500, 12) * 2 - 1
    y = (3 * x[:, 0] * x[:, 1] + torch.cos(3 * x[:, 2]) * x[:, 3] + torch.relu(x[:, 4]))[:, None]
    loader = DataLoader(TensorDataset(x[:4000], y[:4000]), batch_size=64, shuffle=True)
    model = ResidualMLP(48 * run.width, 4, run.is_fixed)
    run.trainer(max_epochs=5).fit(model, loader)
    with torch.no_grad():
        return 1 - float(F.mse_loss(model(x[4000:]), y[4000:]) / y[4000:].var())


COMMON = [
    Report(
        205,
        "bias-of-minus-four",
        "The bias of -4 that is meant for the rare class is given to the layers before each ReLU too.",
        train_closed_relus,
        "The ReLUs give zeros only, because their inputs are negative from the start.",
    ),
    Report(
        209,
        "softmax-before-cross-entropy",
        "The model ends with a softmax, and the loss is `nn.CrossEntropyLoss`.",
        train_softmax_twice,
        "The loss gets probabilities instead of logits.",
    ),
    Report(
        210,
        "blocks-in-a-list",
        "The blocks are in a list of Python and not in an `nn.ModuleList`.",
        train_plain_list,
        "The blocks are not registered, so that the optimizer does not hold them.",
    ),
]
