"""Three trainings that are made sick on purpose, and what `HealthMonitor` says of each: `python -m examples.sick`."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import HealthMonitor, StatsMonitor


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
        return F.cross_entropy(self.head(self.encoder(images)), digits)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Forgotten(Classifier):
    """The optimizer holds only the head."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.head.parameters(), lr=self.lr)


def dead() -> Classifier:
    """A layer whose units never fire."""
    model = Classifier()
    nn.init.constant_(model.encoder[2].bias, -100.0)
    return model


SICK: dict[str, Callable[[], Classifier]] = {
    "a layer that is dead": dead,
    "an optimizer that holds only the head": Forgotten,
    "a learning rate that is a thousand times too large": lambda: Classifier(lr=1.0),
}


def batches() -> DataLoader[tuple[Tensor, ...]]:
    """The digits in batches of 32, [32, 64] with values from 0 to 1."""
    images, digits = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits))
    return DataLoader(data, batch_size=32, shuffle=True)


def main() -> None:
    """Train each of them for 150 steps."""
    warnings.filterwarnings("ignore", module="lightning")
    for name, make in SICK.items():
        torch.manual_seed(0)
        print(f"\n=== {name}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                max_steps=150,
                accelerator="cpu",
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                enable_checkpointing=False,
                default_root_dir=folder,
                callbacks=[StatsMonitor(loggers=[]), HealthMonitor()],
            )
            trainer.fit(make(), batches())


if __name__ == "__main__":
    main()
