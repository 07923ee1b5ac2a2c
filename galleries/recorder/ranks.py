"""Faults of two ranks, which run with gloo in a process each: cases of `run_ranks`. Each returns the record of its rank."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from galleries.recorder.fault import Case, Fault, fit
from galleries.recorder.parts import batches
from galleries.recorder.state_faults import plain
from lightning_hooks import FlightRecorder
from lightning_hooks.recorder.files import to_json


class Halved(Callback):
    """Averages gradients in float16. Lightning registers such a hook on GPUs only."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.strategy.model.register_comm_hook(None, fp16_compress_hook)


def _record(folder: Path, build: Callable[[], Case], *others: Callback) -> dict[str, Any]:
    recorder = FlightRecorder()
    fit(
        Fault("ranks", "Two ranks.", build),
        folder,
        [*others, recorder],
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=60)),
        use_distributed_sampler=False,
    )
    record = recorder.record
    return {"record": None if record is None else json.loads(to_json(record))}


def nan_in_one_batch(folder: Path) -> dict[str, Any]:
    """An input of rank 1 is NaN at step 5."""

    def build() -> Case:
        def spoil(index: int, inputs: torch.Tensor, targets: torch.Tensor) -> None:
            if (index, os.environ["RANK"]) == (5, "1"):
                inputs[3, 4] = float("nan")

        return Case(plain(), batches(spoil))

    return _record(folder, build)


def overflow_in_the_reduction(folder: Path) -> dict[str, Any]:
    """Gradients of 1e6 at step 4 are finite, and are averaged in float16."""

    def build() -> Case:
        def spoil(index: int, inputs: torch.Tensor, targets: torch.Tensor) -> None:
            if index == 4:
                targets.fill_(1e6)

        return Case(plain(), batches(spoil))

    return _record(folder, build, Halved())


def nothing_wrong(folder: Path) -> dict[str, Any]:
    """Nothing is wrong."""
    return _record(folder, lambda: Case(plain(), batches()))
