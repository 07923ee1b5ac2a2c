"""The sound parts that the trainings of the gallery are made of. Every fault is planted by the file that names it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader

FEATURES, WIDTH, ROWS = 6, 8, 8
SLOW = partial(SGD, lr=0.01)
Spoil = Callable[[int, Tensor, Tensor], object]
"""Changes the inputs and targets of a batch in place; the first argument is the number of the batch."""


def batches(spoil: Spoil | None = None, count: int = 90, rows: int = ROWS) -> DataLoader[Any]:
    """Batches of a smooth function of six features, always in the same order."""
    source = Generator().manual_seed(0)
    made = []
    for index in range(count):
        inputs = torch.randn(rows, FEATURES, generator=source)
        targets = inputs.sum(1, keepdim=True).tanh()
        if spoil is not None:
            spoil(index, inputs, targets)
        made.append((inputs, targets))
    return DataLoader(made, batch_size=None)


def at(index: int, change: Callable[[Tensor, Tensor], Any]) -> Spoil:
    """Change one batch."""
    return lambda own, inputs, targets: change(inputs, targets) if own == index else None


def zero_row(inputs: Tensor, targets: Tensor) -> None:
    """Set the third row to zero, as padding is."""
    inputs[2] = 0.0


def chain(**modules: nn.Module) -> nn.Sequential:
    """Modules in a row, with names."""
    return nn.Sequential(OrderedDict(modules))


def around(**guilty: nn.Module) -> nn.Sequential:
    """A linear layer without a bias, so that a row of zeros stays one; the guilty module; and a head."""
    return chain(stem=nn.Linear(FEATURES, WIDTH, bias=False), **guilty, head=nn.Linear(WIDTH, 1))


class Regressor(LightningModule):
    """Fits the targets of `batches` by its body.

    Args:
        body: maps inputs [rows, 6] to outputs [rows, 1].
        optimizer: makes the optimizer of the parameters.
    """

    def __init__(self, body: nn.Module, optimizer: Callable[[Iterable[Any]], Optimizer] = SLOW) -> None:
        super().__init__()
        self.body = body
        self.make_optimizer = optimizer

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(self(inputs), targets)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(*batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return self.make_optimizer(self.parameters())
