"""What the health rules take: beside a monitor whose rows they read, alone, and the units that some of them need.

    python -m benchmarks.health --workloads A,D

Beside a monitor only the diagnosis is new. It takes some microseconds in most steps and more in each twentieth, when the rules
look, so it is timed inside the fit. Alone, blocks alternate inside one fit; each block holds the same number of watched steps,
and its mean step counts, because only each fifth step is watched. Steps with units are compared with the steps between them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

from benchmarks import output, per_workload
from benchmarks.blocks import OFF, Layout, compare
from benchmarks.clock import fit
from benchmarks.mean_steps import compared, row_of, steps_at
from benchmarks.modes import EIGHT, everything
from benchmarks.workloads import SIZES, Workload
from lightning_hooks import HealthMonitor, StatsMonitor, Watch
from lightning_hooks.health.reporter import Reporter

_EVERY = 5
_UNITS_EVERY = 10


def layout_for(workload: Workload, modes: tuple[str, ...], seconds: float, least: int) -> Layout:
    """Blocks of which each begins at a multiple of five steps and counts forty of them.

    Rules on patterns look at each fortieth step, so that each block holds one look, as forty steps of any fit do.

    Args:
        workload: whose step time is roughly known.
        modes: of the run.
        seconds: about how long the run may take were all steps unwatched.
        least: rounds that are run however long they take.

    Example:
        >>> layout_for(SIZES["cpu"]["C"], ("off", "on"), 10.0, 2).block
        50
    """
    layout = Layout(modes, rounds=least, length=40, warmup=10, lead=30)
    rounds = round(seconds * 1e3 / workload.step_ms / (len(modes) * layout.block))
    return Layout(modes, rounds=max(least, rounds), length=40, warmup=10, lead=30)


def measure_beside(workload: Workload, seconds: float, device: str = "cpu") -> dict[str, Any]:
    """The time of the diagnosis in a fit with a `StatsMonitor` that watches each step.

    Args:
        workload: what is trained.
        seconds: about how long it may take were no step watched.
        device: `cpu` or `cuda`.
    """
    steps = max(120, round(seconds * 1e3 / workload.step_ms))
    layout = Layout((OFF,), rounds=1, length=steps, lead=30)
    taken: list[float] = []
    health = HealthMonitor()
    made, always = workload.make(layout.steps, device), [StatsMonitor(), health]
    with patch.object(Reporter, "consume", _timed(Reporter.consume, taken)):
        clock = fit(*made, layout, [], always=always, options=workload.options, device=device)
    step = statistics.median(clock.blocks(OFF)[0])
    # The first looks compile nothing, but fill caches and the early levels.
    mean = statistics.fmean(taken[40:])
    return {
        **row_of(workload, "beside", layout),
        "step_ms": step * 1e3,
        "rows": _rows_of(health),
        "usual_us": statistics.median(taken[40:]) * 1e6,
        "mean_us": mean * 1e6,
        "largest_us": max(taken[40:]) * 1e6,
        "median": 1 + mean / step,
    }


def _timed(method: Callable[..., None], taken: list[float]) -> Callable[..., None]:
    def timed(self: Reporter, view: Any) -> None:
        started = time.perf_counter()
        method(self, view)
        taken.append(time.perf_counter() - started)
        self.rows_read = len(view.rows)  # type: ignore[attr-defined]

    return timed


def _rows_of(health: HealthMonitor) -> int:
    return int(getattr(health._reporter, "rows_read", 0))


def measure_alone(workload: Workload, seconds: float, least: int, device: str = "cpu") -> dict[str, Any]:
    """A `HealthMonitor` without another monitor, which watches each fifth step.

    Args:
        workload: what is trained.
        seconds: about how long it may take were no step watched.
        least: rounds.
        device: `cpu` or `cuda`.
    """
    layout = layout_for(workload, (OFF, "alone"), seconds, least)
    return compared(
        workload, layout, OFF, "alone", {"alone": HealthMonitor(every_n_steps=steps_at(_EVERY, "alone", layout))}, device
    )


def measure_units(workload: Workload, seconds: float) -> dict[str, Any]:
    """The rules of *everything*, with the units of each output at every tenth step, over the steps between those.

    A step with units, and the one after it, are compared with two steps halfway to the next units. Steps so close to one
    another differ far less than blocks of steps do.

    Args:
        workload: what is trained.
        seconds: about how long it may take were no step watched.
    """
    windows = max(20, round(seconds * 1e3 / workload.step_ms / _UNITS_EVERY))
    layout = Layout((OFF,), rounds=1, length=windows * _UNITS_EVERY, warmup=10, lead=30)
    units = Watch(modules="*", leaves=True, tensors=("output",), stats=EIGHT, units="auto", every_n_steps=_UNITS_EVERY)
    monitor = StatsMonitor(watch=[*everything(), units])
    clock = fit(*workload.make(layout.steps), layout, [], always=[monitor], options=workload.options)
    times = clock.blocks(OFF)[0]
    step = statistics.median(times)
    extra = [extra_of_units(times[start : start + _UNITS_EVERY]) for start in range(0, len(times), _UNITS_EVERY)]
    means = [[step + each / _UNITS_EVERY] for each in extra]
    ratio = asdict(compare(means, [[step]] * len(means)))
    return {**row_of(workload, "units", layout), "rounds": windows, "step_ms": step * 1e3, **ratio}


def extra_of_units(window: Sequence[float]) -> float:
    """The time that units take in a window of ten steps, whose first step follows one with units and whose last has some.

    Args:
        window: the time of each step, in seconds.

    Example:
        >>> extra_of_units([1.0] * 9 + [1.5])
        0.5
    """
    return window[0] + window[9] - window[4] - window[5]


def measure(letter: str, what: str, seconds: float, sizes: str = "cpu", device: str = "cpu") -> dict[str, Any]:
    """The row of a workload.

    Args:
        letter: of the workload.
        what: `beside`, `alone` or `units`.
        seconds: about how long it may take were no step watched.
        sizes: a key of `SIZES`.
        device: `cpu` or `cuda`.
    """
    workload, least = SIZES[sizes][letter], 12 if output.full() else 3
    if what == "beside":
        return measure_beside(workload, seconds, device)
    if what == "alone":
        return measure_alone(workload, seconds, least, device)
    if device != "cpu":
        raise ValueError("on a device the single steps that units are measured by cannot be timed: leave out --what units")
    return measure_units(workload, seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    seconds = 40.0 if output.full() else 10.0
    per_workload.run("health", measure, ("beside", "alone", "units"), _shown, arguments, seconds)


def _shown(row: dict[str, Any]) -> str:
    return f"{row['median']:.4f}, {row['mean_us']:.0f} µs" if row["what"] == "beside" else per_workload.ratio(row)


if __name__ == "__main__":
    main()
