"""Five trainings that are made sick on purpose and a healthy one, and what `HealthMonitor` says of each.

python -m examples.sick            # says it in the terminal, and leaves the runs in a new temporary folder
python -m examples.sick runs/sick  # leaves the runs there

The commands that it prints hold the whole path of a run, so that they work from any current folder.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import HealthMonitor, StatsMonitor

STEPS = 150


class Classifier(LightningModule):
    """A perceptron on scikit-learn's digits.

    Args:
        lr: the learning rate of AdamW.
    """

    def __init__(self, lr: float = 1e-3) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)
        self.lr = lr

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, digits = batch
        loss = self.loss_of(self.head(self.encoder(images)), digits)
        self.log("train_loss", loss)
        return loss

    def loss_of(self, logits: Tensor, digits: Tensor) -> Tensor:
        """The cross entropy."""
        return F.cross_entropy(logits, digits)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Forgotten(Classifier):
    """The optimizer holds only the head."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.head.parameters(), lr=self.lr)


class LogOfZero(Classifier):
    """From step 60 on, the loss takes the logarithm of probabilities of which one is exactly 0."""

    def loss_of(self, logits: Tensor, digits: Tensor) -> Tensor:
        """The cross entropy as a logarithm of probabilities, none of which is 0 at first."""
        probabilities = logits.softmax(dim=1)
        if self.global_step >= 60:
            probabilities = probabilities * (probabilities >= 0.01)
        return -(F.one_hot(digits, 10) * probabilities.log()).sum(dim=1).mean()


def dead() -> Classifier:
    """A layer whose units never fire."""
    model = Classifier()
    nn.init.constant_(model.encoder[2].bias, -100.0)
    return model


def too_large() -> Classifier:
    """A layer whose weights begin 10,000 times too large."""
    model = Classifier()
    with torch.no_grad():
        model.encoder[2].weight.mul_(1e4)
    return model


TRAININGS: dict[str, tuple[str, Callable[[], Classifier]]] = {
    "healthy": ("nothing is wrong", Classifier),
    "dead_layer": ("a layer that is dead", dead),
    "forgotten": ("an optimizer that holds only the head", Forgotten),
    "rate_too_high": ("a learning rate that is a thousand times too large", lambda: Classifier(lr=1.0)),
    "log_of_zero": ("a loss that takes the logarithm of 0 from step 60 on", LogOfZero),
    "too_large": ("a layer that begins 10,000 times too large", too_large),
}


def batches() -> DataLoader[tuple[Tensor, ...]]:
    """The digits in batches of 32, [32, 64] with values from 0 to 1."""
    images, digits = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits))
    return DataLoader(data, batch_size=32, shuffle=True)


def train(make: Callable[[], Classifier], folder: Path) -> HealthMonitor:
    """Train a model for 150 steps; returns the monitor, which knows what was found.

    Args:
        make: returns the model.
        folder: of the run, with an event file and the findings.
    """
    torch.manual_seed(0)
    health = HealthMonitor()
    trainer = Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=TensorBoardLogger(folder.parent, folder.name, ""),
        log_every_n_steps=5,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[StatsMonitor(), health],
    )
    trainer.fit(make(), batches())
    return health


def main(arguments: list[str]) -> None:
    """Train each of them."""
    warnings.filterwarnings("ignore", module="lightning")
    folder = Path(arguments[0]).resolve() if arguments else Path(tempfile.mkdtemp(prefix="sick_"))
    # A fit names its folder relative to the current one if it can. In an empty current folder it names the whole path.
    with tempfile.TemporaryDirectory() as empty, chdir(empty):
        for name, (what, make) in TRAININGS.items():
            print(f"\n=== {what}", file=sys.stderr)
            train(make, folder / name)
    print(f"\nAll of them: lightning-hooks doctor {shlex.quote(str(folder))}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
