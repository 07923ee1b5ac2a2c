"""What the histograms take that a `StatsMonitor()` measures by default, at every fiftieth step.

    python -m benchmarks.histograms --workloads A,B

Blocks alternate inside one fit: default statistics at every step, the same with histograms of every row at one step of each
block of fifty, and no callback. The mean step of a block counts, drawing into the event file included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from benchmarks import output, per_workload
from benchmarks.blocks import OFF, Layout
from benchmarks.mean_steps import compared, steps_at
from benchmarks.modes import watched_steps
from benchmarks.workloads import SIZES, Workload
from lightning_hooks import StatsMonitor
from lightning_hooks.plan.defaults import DEFAULT_WATCH
from lightning_hooks.stats.statistics import DEFAULT_STATS

_EVERY: Final = 50


def layout_of(rounds: int) -> Layout:
    """Blocks that begin and end at a multiple of the interval, so that each holds one step with histograms."""
    return Layout((OFF, "scalars", "default"), rounds, length=_EVERY - 10, warmup=10, lead=_EVERY)


def measure_with(workload: Workload, layout: Layout, device: str = "cpu") -> dict[str, Any]:
    """The row of a workload.

    Args:
        workload: what is trained.
        layout: from `layout_of`.
        device: `cpu` or `cuda`.
    """
    rules = [replace(rule, stats=DEFAULT_STATS) for rule in DEFAULT_WATCH]
    drawn = [replace(rule, stats=("histogram",), every_n_steps=steps_at(_EVERY, "default", layout)) for rule in DEFAULT_WATCH]
    monitors = {
        "scalars": StatsMonitor(watch=rules, every_n_steps=watched_steps("scalars", layout), prefix="scalars/"),
        "default": StatsMonitor([*rules, *drawn], every_n_steps=watched_steps("default", layout), histogram_every_n_steps=1),
    }
    return compared(workload, layout, "scalars", "default", monitors, device)


def measure(letter: str, what: str, seconds: float, sizes: str = "cpu", device: str = "cpu") -> dict[str, Any]:
    """The row of a workload.

    Args:
        letter: of the workload.
        what: `default`.
        seconds: about how long it may take were no step watched.
        sizes: a key of `SIZES`.
        device: `cpu` or `cuda`.
    """
    workload, least = SIZES[sizes][letter], 12 if output.full() else 3
    one = layout_of(1)
    rounds = round(seconds * 1e3 / workload.step_ms / (len(one.modes) * one.block))
    return measure_with(workload, layout_of(max(least, rounds)), device)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    per_workload.run("histograms", measure, ("default",), per_workload.ratio, arguments, 60.0 if output.full() else 20.0)


if __name__ == "__main__":
    main()
