"""Fits whose folder of event files is removed; each returns its steps and how many warnings say that a monitor stopped."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import HealthMonitor, StatsMonitor
from tests.callbacks.models import trainer_of


class Regression(LightningModule):
    """A linear regression."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Remove(Callback):
    """Removes a folder after four steps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
        if trainer.global_step == 4:
            shutil.rmtree(self.folder)


def stats_monitor(folder: Path) -> dict[str, int]:
    return _fit(folder, StatsMonitor(logdir=folder / "events", on_error="warn"))


def health_monitor(folder: Path) -> dict[str, int]:
    return _fit(folder, HealthMonitor(logdir=folder / "events", every_n_steps=1))


def _fit(folder: Path, monitor: Callback) -> dict[str, int]:
    (folder / "events").mkdir()
    trainer = trainer_of(folder, monitor, Remove(folder / "events"), max_epochs=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(Regression(), DataLoader(torch.ones(80, 4), batch_size=8))
    said = [each for each in caught if "stopped watching" in str(each.message)]
    return {"steps": trainer.global_step, "stopped watching": len(said)}
