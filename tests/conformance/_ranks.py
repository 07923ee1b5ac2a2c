"""One rank of data-parallel runs on the CPU, started as a process of its own; writes what it saw as JSON.

python -m tests.conformance._ranks FOLDER RUN…
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from lightning_hooks import StatsMonitor, Watch
from lightning_hooks.engine.participants import overhead
from tests import late_copies
from tests.callbacks.models import Memory, Net, ValNet, adamw, assert_clean, data, ours_on, trainer_of

RANK = int(os.environ.get("LOCAL_RANK", "0"))
_CALLS = {"statistic": 0}


def fails_once(tensor: Tensor) -> Tensor:
    """A statistic of a user that fails on one rank, at one call of several."""
    _CALLS["statistic"] += 1
    if RANK == int(os.environ["FAILS_ON"]) and _CALLS["statistic"] == 3:
        raise ValueError("on this rank only")
    return tensor.mean()


def takes_long(tensor: Tensor) -> Tensor:
    """A statistic that takes a quarter of the time of a step, on one rank."""
    if RANK == int(os.environ["FAILS_ON"]):
        CLOCK.now += 0.25
    return tensor.mean()


class Clock:
    """Goes on only where a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


class Timed(Net):
    """A step takes a second."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        CLOCK.now += 1.0
        return super().training_step(batch, batch_idx)


class Loses(Memory):
    """A logger that fails at its third step; only rank 0 writes."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if "epoch" not in metrics and len(self.ours) == 2:
            raise OSError(28, "No space left on device")
        super().log_metrics(metrics, step)


class Branches(Net):
    """A module that rank 1 alone calls, from its second batch on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.extra = torch.nn.Identity()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if RANK == 1 and batch_idx >= 1:
            self.extra(batch[0])
        return super().training_step(batch, batch_idx)


class Notes(Callback):
    """Whether there were hooks in each step, and how many collectives of ours."""

    def __init__(self) -> None:
        self.hooked: list[bool] = []

    def on_before_zero_grad(self, trainer: Any, pl_module: LightningModule, optimizer: Any) -> None:
        self.hooked.append(ours_on(pl_module) > 0)


def statistic(**options: Any) -> StatsMonitor:
    rule = Watch(modules="body.0", tensors="output", stats=["mean", "tests.conformance._ranks.fails_once"])
    return StatsMonitor([rule, Watch(params="*")], on_error="warn", **options)


CASES: dict[str, Callable[[], tuple[Net, StatsMonitor, Any]]] = {
    "a statistic": lambda: (Net(adamw), statistic(), Memory()),
    "a statistic, at some steps": lambda: (Net(adamw), statistic(every_n_steps=2), Memory()),
    "the writing": lambda: (Net(adamw), StatsMonitor(on_error="warn"), Loses()),
    "a validation": lambda: (ValNet(adamw), statistic(stages=["train", "validate"]), Memory()),
    "a metric of a module that one rank calls": lambda: (
        Branches(adamw),
        StatsMonitor([Watch(modules="extra", tensors="output", stats=["mean", "torchmetrics.MeanMetric"])]),
        Memory(),
    ),
    "the clock": lambda: (
        Timed(adamw),
        StatsMonitor(
            [
                Watch(params="body.0.weight", tensors="param", stats=["mean", takes_long]),
                Watch(modules="body.0", tensors="output", stats="mean"),
            ],
            max_overhead=0.1,
        ),
        Memory(),
    ),
}


def main(folder: str, *runs: str) -> None:
    """Train once for each run: `CASE|RANK`, where RANK is the one that fails or is slow, or `CASE|RANK|late` or `…|reduced`."""
    torch.set_num_threads(1)
    found = {}
    for run in runs:
        print("run:", run, flush=True)
        case, fails_on, *how = run.split("|")
        os.environ["FAILS_ON"] = fails_on
        _CALLS["statistic"], CLOCK.now = 0, 0.0
        with pytest.MonkeyPatch.context() as patch:
            if "late" in how:
                late_copies.install(patch)
            if "reduced" in how:  # as tables of many ranks
                patch.setattr("lightning_hooks.stats.ranks.GATHERED", -1)
            if case == "the clock":
                patch.setattr(overhead, "perf_counter", CLOCK)
            found[run] = train(case, Path(folder), patch)
    (Path(folder) / f"rank{RANK}.json").write_text(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def train(case: str, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """8 steps, or by the clock 24."""
    calls: list[str] = []

    def counted(name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"] in ("lightning_hooks.stats.ranks", "lightning_hooks.stats.processes"):
                calls.append(name)
            return collective(*args, **options)

        return call

    for name in ("all_gather_single", "all_reduce"):
        patch.setattr(torch.distributed, name, counted(name, getattr(torch.distributed, name)))
    torch.manual_seed(0)
    model, monitor, memory = CASES[case]()
    notes = Notes()
    trainer = trainer_of(
        folder,
        monitor,
        notes,
        strategy=DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=60), find_unused_parameters=False),
        devices=2,
        logger=memory,
        use_distributed_sampler=False,
        val_check_interval=2 if isinstance(model, ValNet) else None,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, data(24 if case == "the clock" else 8), *([data(2)] if isinstance(model, ValNet) else []))
    assert_clean(model)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    said = [str(w.message) for w in caught if "stopped watching" in str(w.message) or "max_overhead" in str(w.message)]
    return {
        "hooked": notes.hooked,
        "steps": memory.steps,
        "warnings": said,
        "collectives": {name: calls.count(name) for name in set(calls)},
        "weights": digest,
        "latest": {tag: value for tag, value in monitor.latest.items() if "extra" in tag},
    }


if __name__ == "__main__":
    from tests.conformance import _ranks  # the module that the path of a statistic names, not a second one

    _ranks.main(*sys.argv[1:])
