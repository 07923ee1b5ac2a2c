"""Fits of sharded parameters (FSDP2) on one of two ranks; each returns after how many steps it ended."""

from __future__ import annotations

from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from lightning_hooks import FlightRecorder
from tests.callbacks.models import trainer_of


class Sharded(LightningModule):
    """Two layers, each of which is sharded."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs))
        self.is_configured = False

    def configure_model(self) -> None:
        if not self.is_configured:
            self.is_configured = True
            for layer in (self.net[0], self.net[2], self.net):
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def sharded_alone(folder: Path) -> int:
    return _fit(folder, 4)


def sharded_and_recorded(folder: Path) -> int:
    return _fit(folder, 4, FlightRecorder(logdir=folder))


def unevenly_sharded_and_recorded(folder: Path) -> int:
    return _fit(folder, 1, FlightRecorder(logdir=folder))


def _fit(folder: Path, outputs: int, *callbacks: Callback) -> int:
    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    trainer = trainer_of(folder, *callbacks, devices=2, strategy=strategy, use_distributed_sampler=False)
    trainer.fit(Sharded(outputs), DataLoader(torch.ones(32, 4), batch_size=8))
    return trainer.global_step
