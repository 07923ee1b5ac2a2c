"""What the health rules take: beside a monitor whose rows they read, alone, and the units that some of them need.

    python -m benchmarks.health --workloads A,D

Beside a monitor only the diagnosis is new. It takes some microseconds in most steps and more in each twentieth, when the rules
look, so it is timed inside the fit. Alone, and for units, the steps at which something is due are compared with those between.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

from lightning.pytorch import Callback

from benchmarks import output, per_workload
from benchmarks.blocks import OFF, Layout, compare
from benchmarks.clock import fit
from benchmarks.mean_steps import row_of
from benchmarks.modes import EIGHT, everything, monitor_mode
from benchmarks.workloads import SIZES, Workload
from lightning_hooks import HealthMonitor, StatsMonitor, Watch
from lightning_hooks.health.reporter import Reporter

_EVERY = 5
_UNITS_EVERY = 10
_UNITS_BLOCK = 10  # steps, where blocks are timed
_WINDOW = 40  # steps; rules on patterns look once in so many


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
    return int(getattr(health._job.reporter, "rows_read", 0))


def measure_alone(workload: Workload, seconds: float) -> dict[str, Any]:
    """A `HealthMonitor` without another monitor, which watches each fifth step, over the steps between those.

    What it takes in a step that is not watched is not seen: see *What a step takes that is not watched*.

    Args:
        workload: what is trained.
        seconds: about how long it may take were no step watched.
    """
    return _in_windows(workload, "alone", HealthMonitor(), _EVERY, seconds)


def measure_units(workload: Workload, seconds: float) -> dict[str, Any]:
    """The rules of *everything*, with the units of each output at every tenth step, over the steps between those.

    Args:
        workload: what is trained.
        seconds: about how long it may take were no step watched.
    """
    units = Watch(modules="*", select="leaves", tensors=("output",), stats=EIGHT, units="auto", every_n_steps=_UNITS_EVERY)
    return _in_windows(workload, "units", StatsMonitor(watch=[*everything(), units]), _UNITS_EVERY, seconds)


def measure_units_in_blocks(workload: Workload, seconds: float, device: str) -> dict[str, Any]:
    """As `measure_units`, where single steps cannot be timed: blocks whose steps all have units, over blocks without.

    The ratio is that of the mean over ten steps, of which one has units. `each` is that of a step with units.

    Args:
        workload: what is trained.
        seconds: about how long it may take were no step watched.
        device: of the fit.
    """
    names = ("everything", "units")
    rounds = max(6, round(seconds * 1e3 / workload.step_ms / (2 * _UNITS_BLOCK)))
    layout = Layout(names, rounds=rounds, length=_UNITS_BLOCK - 4, warmup=4, lead=0)
    units = Watch(modules="*", select="leaves", tensors=("output",), stats=EIGHT, units="auto")
    modes = [
        monitor_mode(name, rules, layout, prefix=f"{name}/")
        for name, rules in zip(names, (everything(), [*everything(), units]), strict=True)
    ]
    clock = fit(*workload.make(layout.steps, device), layout, modes, options=workload.options, device=device)
    without, with_units = (clock.blocks(name) for name in names)
    step = statistics.median(statistics.fmean(block) for block in without)
    ratio = compare(with_units, without)
    shared = {key: 1 + (getattr(ratio, key) - 1) / _UNITS_EVERY for key in ("median", "low", "high")}
    return {
        **row_of(workload, "units", layout),
        "step_ms": step * 1e3,
        "each": ratio.median,
        "each_ms": ratio.extra_ms,
        **shared,
    }


def _in_windows(workload: Workload, what: str, monitor: Callback, every: int, seconds: float) -> dict[str, Any]:
    """The row of a workload: the steps at which something is due, and those after them, over the steps between.

    Steps so close to one another differ far less than blocks of steps do.

    Args:
        workload: what is trained.
        what: is measured.
        monitor: is there in all steps.
        every: the interval of the steps at which it does more.
        seconds: about how long it may take were no step watched.
    """
    windows = max(6, round(seconds * 1e3 / workload.step_ms / _WINDOW))
    layout = Layout((OFF,), rounds=1, length=windows * _WINDOW, warmup=10, lead=30)
    clock = fit(*workload.make(layout.steps), layout, [], always=[monitor], options=workload.options)
    times = clock.blocks(OFF)[0]
    step = statistics.median(times)
    extra = [extra_of(times[start : start + _WINDOW], every) for start in range(0, len(times), _WINDOW)]
    means = [[step + each / _WINDOW] for each in extra]
    ratio = asdict(compare(means, [[step]] * len(means)))
    return {**row_of(workload, what, layout), "rounds": windows, "step_ms": step * 1e3, **ratio}


def extra_of(window: Sequence[float], every: int) -> float:
    """The time that something takes which is due at the last of so many steps.

    The due steps and those after them, in which the logger's thread may still write, are compared with two steps between them.

    Args:
        window: the time of each step, in seconds; the first follows a due one.
        every: the interval of the due steps, at least 4; a divisor of the length of the window.

    Example:
        >>> extra_of(([1.0] * 9 + [1.5]) * 2, 10)
        1.0
    """
    middle = every // 2
    return sum(
        window[i] + window[i + every - 1] - window[i + middle - 1] - window[i + middle] for i in range(0, len(window), every)
    )


def measure(letter: str, what: str, seconds: float, sizes: str = "cpu", device: str = "cpu") -> dict[str, Any]:
    """The row of a workload.

    Args:
        letter: of the workload.
        what: `beside`, `alone` or `units`.
        seconds: about how long it may take were no step watched.
        sizes: a key of `SIZES`.
        device: `cpu` or `cuda`.
    """
    workload = SIZES[sizes][letter]
    if what == "beside":
        return measure_beside(workload, seconds, device)
    if device == "cpu":
        return {"alone": measure_alone, "units": measure_units}[what](workload, seconds)
    if what == "units":
        return measure_units_in_blocks(workload, seconds, device)
    raise ValueError(f"on a device single steps cannot be timed: leave out {what} in --what")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    seconds = 40.0 if output.full() else 10.0
    per_workload.run("health", measure, ("beside", "alone", "units"), _shown, arguments, seconds)


def _shown(row: dict[str, Any]) -> str:
    return f"{row['median']:.4f}, {row['mean_us']:.0f} µs" if row["what"] == "beside" else per_workload.ratio(row)


if __name__ == "__main__":
    main()
