"""The mean step of blocks in which something happens only at some steps, in one mode over another, within one fit."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lightning.pytorch import Callback

from benchmarks.blocks import OFF, Layout, compare
from benchmarks.clock import fit
from benchmarks.modes import CallbackMode, Mode, watched_steps
from benchmarks.workloads import Workload


def steps_at(every: int, mode: str, layout: Layout) -> list[int]:
    """The steps of the blocks of a mode at which a schedule with this interval is due, as Lightning counts."""
    return [step for step in watched_steps(mode, layout) if (step + 1) % every == 0]


def compared(
    workload: Workload, layout: Layout, base: str, mode: str, callbacks: Mapping[str, Callback], device: str
) -> dict[str, Any]:
    """The row of a workload: how much longer the mean step of a mode takes.

    Args:
        workload: what is trained.
        layout: the blocks.
        base: the mode that `mode` is compared with.
        mode: what is measured.
        callbacks: the callback of each mode but `OFF`.
        device: `cpu` or `cuda`.
    """
    modes: list[Mode] = [CallbackMode(name, callback) for name, callback in callbacks.items()]
    clock = fit(*workload.make(layout.steps, device), layout, modes, options=workload.options, device=device)
    means = {name: [[statistics.fmean(block)] for block in clock.blocks(name)] for name in (OFF, base, mode)}
    step = statistics.median(block[0] for block in means[OFF])
    return {**row_of(workload, mode, layout), "step_ms": step * 1e3, **asdict(compare(means[mode], means[base]))}


def row_of(workload: Workload, what: str, layout: Layout) -> dict[str, Any]:
    """What identifies a row."""
    return {"workload": workload.name, "title": workload.title, "what": what, "rounds": layout.rounds}
