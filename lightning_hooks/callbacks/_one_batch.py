"""A Trainer for one batch: with the precision, the device and the counts of the run that was recorded, and without a word."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch


class OneBatch:
    """A data loader with one batch, which the Trainer counts as the batch of the record.

    Args:
        batch: the batch.
        batch_idx: its index in the run that was recorded.
    """

    def __init__(self, batch: Any, batch_idx: int) -> None:
        self._batch, self._batch_idx = batch, batch_idx
        self.trainer: Any = None

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        # The loop counts batches from 0 when it starts, and takes the index right after it has got the batch.
        self.trainer.fit_loop.epoch_loop.batch_progress.current.ready = self._batch_idx
        yield copy.deepcopy(self._batch)


def set_counts(trainer: Any, epoch: int, step: int) -> None:
    """Let `current_epoch` and `global_step` be those of the record: modules have schedules by them."""
    trainer.fit_loop.epoch_progress.current.processed = epoch
    loop = trainer.fit_loop.epoch_loop
    # One of the two counts, depending on who calls the optimizers.
    loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
    loop.manual_optimization.optim_step_progress.total.completed = step


def precision_arguments(package: ModuleType, context: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The arguments of a Trainer for the precision and the device of the record."""
    device = str(context.get("device") or "cpu").partition(":")[0]
    is_there = device != "cuda" or torch.cuda.is_available()
    if not is_there:
        notes.append("the step was recorded on a CUDA device, and runs on the CPU here")
    device = device if is_there else "cpu"
    precision = str(context.get("precision") or "32-true")
    arguments: dict[str, Any] = {"accelerator": "gpu" if device == "cuda" else device}
    if precision != "16-mixed":
        return {**arguments, "precision": precision}
    scaler = torch.amp.GradScaler(device, init_scale=float(context.get("loss_scale") or 65536.0))
    plugins = importlib.import_module(f"{package.__name__}.plugins")
    return {**arguments, "plugins": [plugins.MixedPrecision(precision, device, scaler)]}
