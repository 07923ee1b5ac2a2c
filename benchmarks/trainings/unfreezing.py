"""A layer or a body that is frozen at first and trained later, as Lightning's `BaseFinetuning` does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import BaseFinetuning
from torch import nn, optim

from galleries.health.training import Case


class Unfreezing(BaseFinetuning):
    """Freezes a part before the training, and trains it from an epoch on."""

    def __init__(self, part: nn.Module, epoch: int) -> None:
        super().__init__()
        self.part, self.epoch = part, epoch

    def freeze_before_training(self, pl_module: LightningModule) -> None:
        self.freeze(self.part)

    def finetune_function(self, pl_module: LightningModule, epoch: int, optimizer: optim.Optimizer) -> None:
        if epoch == self.epoch:
            self.unfreeze_and_add_param_group(self.part, optimizer, initial_denom_lr=2.0)


def with_callback(case: Case, callback: Callback) -> Case:
    """The case with a callback that its module brings."""
    module: Any = case.module
    brought = [*module.configure_callbacks(), callback]
    module.configure_callbacks = lambda: brought
    return case


def with_unfreezing(case: Case, part: nn.Module, epoch: int) -> Case:
    """The case with a part that is trained from an epoch on."""
    return with_callback(replace(case), Unfreezing(part, epoch))
