"""Threads on training and evaluation: what stays on, goes on or is left off between the two."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from galleries.reports.report import Report, Run


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images of 8 x 8 with mean 0 and their labels: of 1,300 to train with, and the others."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    y = torch.tensor(data.target)
    return x[:1300], y[:1300], x[1300:], y[1300:]


def adding_problem(count: int, length: int = 12) -> tuple[Tensor, Tensor]:
    """Sequences of values, of which six are marked, and the sum of these."""
    values = torch.rand(count, length) * 2 - 1
    marks = torch.zeros(count, length).scatter_(1, torch.rand(count, length).topk(6).indices, 1.0)
    return torch.stack([values, marks], dim=-1), (values * marks).sum(1)


class SelfAttention(nn.Module):
    """Attention of several heads."""

    def __init__(self, run: Run, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.run, self.heads, self.dropout = run, heads, dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes the positions."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        if self.run.is_fixed:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """A block of a transformer, with its norms in front."""

    def __init__(self, run: Run, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = SelfAttention(run, dim, heads=2, dropout=0.4)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Adds what attention and perceptron find."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Adder(LightningModule):
    """A transformer that reads the sum at a token of its own."""

    def __init__(self, run: Run, dim: int = 24) -> None:
        super().__init__()
        self.embed = nn.Linear(2, dim)
        self.token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.block = Block(run, dim)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The sum of each sequence."""
        x = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], dim=1)
        out: Tensor = self.head(self.block(x)[:, 0]).squeeze(-1)
        return out

    def training_step(self, batch: Any, _: int) -> Tensor:
        """Squared error."""
        x, y = batch
        return F.mse_loss(self(x), y)

    def validation_step(self, batch: Any, _: int) -> None:
        """Squared error of the validation."""
        x, y = batch
        self.log("val_loss", F.mse_loss(self(x), y))

    def configure_optimizers(self) -> Any:
        """AdamW with one cycle."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=344)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train_attention_dropout(run: Run) -> float:
    """A transformer for the adding problem; the share of variance explained."""
    torch.manual_seed(run.seed)
    loader = DataLoader(TensorDataset(*adding_problem(4096)), batch_size=48, shuffle=True)
    validation = DataLoader(TensorDataset(*adding_problem(256)), batch_size=256)
    model = Adder(run)
    trainer = run.trainer(max_epochs=4, gradient_clip_val=1.0)
    trainer.fit(model, loader, validation)
    x, y = adding_problem(1024)
    model.eval()
    with torch.no_grad():
        return 1 - (F.mse_loss(model(x), y) / y.var()).item()


class Residual(nn.Module):
    """A residual block with batch norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Adds what the body finds."""
        return F.relu(x + self.body(x))


def resnet(width: int = 16) -> nn.Sequential:
    """A small ResNet without its head."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Residual(width),
        nn.MaxPool2d(2),
        Residual(width),
        nn.Flatten(),
    )


class SecondTask(LightningModule):
    """A new head on the frozen backbone of an older classifier."""

    def __init__(self, run: Run, backbone: nn.Module, features: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.backbone.requires_grad_(False)
        if run.is_fixed:
            self.backbone.eval()
        self.head = nn.Linear(features, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Whether the digit is odd."""
        out: Tensor = self.head(self.backbone(x))
        return out

    def training_step(self, batch: Any, _: int) -> Tensor:
        """Cross entropy."""
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam for the head alone."""
        return torch.optim.Adam(self.head.parameters(), lr=1e-3)


def train_frozen_norms(run: Run) -> float:
    """A second task beside a first that is to stay as it is; the mean accuracy of both."""
    torch.manual_seed(run.seed)
    x, y, x_test, y_test = digits()
    backbone, old_head = resnet(), nn.Linear(256, 10)
    old = nn.Sequential(backbone, old_head)
    optimizer = torch.optim.Adam(old.parameters(), lr=3e-3)
    for xb, yb in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, drop_last=True):
        optimizer.zero_grad()
        F.cross_entropy(old(xb), yb).backward()
        optimizer.step()

    inverted, inverted_test = 1.5 - 0.5 * x, 1.5 - 0.5 * x_test
    loader = DataLoader(TensorDataset(inverted, y % 2), batch_size=32, shuffle=True, drop_last=True)
    module = SecondTask(run, backbone, 256)
    trainer = run.trainer(max_steps=200, max_epochs=-1)
    trainer.fit(module, loader)
    old.eval()
    module.eval()
    with torch.no_grad():
        first = (old(x_test).argmax(1) == y_test).float().mean()
        second = (module(inverted_test).argmax(1) == y_test % 2).float().mean()
    return float((first + second) / 2)


def convolutions(depth: int, width: int) -> nn.Sequential:
    """A classifier of many convolutions, each with a batch norm."""
    layers: list[nn.Module] = []
    for number in range(depth):
        layers += [nn.Conv2d(width if number else 1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        if number == depth // 2:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(width, 10))


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The accuracy in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def train_left_in_evaluation(run: Run) -> float:
    """A deep classifier of digits, validated every 50 steps; the accuracy."""
    torch.manual_seed(run.seed)
    x, y, x_test, y_test = digits()
    model = convolutions(depth=8, width=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    best = 0.0
    with run.watching(model, optimizer):
        model.train()
        for step in range(200):
            if step % 50 == 0:
                best = max(best, accuracy(model, x_test[:200], y_test[:200]))
                if run.is_fixed:
                    model.train()
            index = torch.randint(len(x), (48,))
            loss = F.cross_entropy(model(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return accuracy(model, x_test, y_test)


REPORTS = [
    Report(
        10,
        "attention-dropout-in-evaluation",
        "The dropout of a hand-written attention is an argument of a function, which is on in evaluation too.",
        train_attention_dropout,
        "in evaluation the attention of each block still drops 40 % of its weights: `dropout_p` of "
        "`scaled_dot_product_attention` does not follow `self.training`; the same input gives other outputs each time",
    ),
    Report(
        11,
        "frozen-norms-train-on",
        "The backbone's parameters are frozen, but its batch norms are in training mode and follow the new data.",
        train_frozen_norms,
        "the batch norms of `backbone` are frozen (no gradient) but in training mode: their running statistics move at "
        "each step, so the frozen backbone changes; put it into evaluation mode",
    ),
    Report(
        13,
        "left-in-evaluation-after-validation",
        "The validation puts the model into evaluation mode, and nothing puts it back.",
        train_left_in_evaluation,
        "the model trains in evaluation mode from the first validation on (step 0): its batch norms normalise by their "
        "running statistics, which nobody updates, and the dropout is off; call `model.train()` after the validation",
    ),
]
