"""What a user gets: whole fits with lists of callbacks, by turns, and the mean steps inside them.

    python -m benchmarks.whole_fits --workloads A,D

The other benchmarks switch callbacks on and off inside one fit, where neighbouring steps hardly differ. They do not see what a
fit takes outside its steps, nor what a callback does only in the first ones. Here each list has fits of its own, with the
TensorBoard logger; in each round every list has one. Whole machines drift between fits, so both are said: the ratio of the
best whole fits, and the median over rounds of the ratio of mean steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lightning.pytorch import Callback

from benchmarks import output
from benchmarks.blocks import OFF, Layout
from benchmarks.clock import Clock, fit
from benchmarks.workloads import SIZES, Workload
from lightning_hooks import FlightRecorder, HealthMonitor, StatsMonitor

NOTHING: Final = "no callback"
ALONE: Final = "`StatsMonitor()`"
BOTH: Final = "with `HealthMonitor()`"
LISTS: Final[Mapping[str, tuple[Callable[[], Callback], ...]]] = {
    NOTHING: (),
    ALONE: (StatsMonitor,),
    BOTH: (StatsMonitor, HealthMonitor),
    "with `FlightRecorder()` too": (StatsMonitor, HealthMonitor, FlightRecorder),
    "`HealthMonitor()` alone": (HealthMonitor,),
}
_OVER: Final = {BOTH: ALONE, "with `FlightRecorder()` too": ALONE}  # the others: over NOTHING
STEPS: Final = 400
EARLY: Final = 50  # first steps, in which caches fill, and gradients are compared


def measure(letter: str, rounds: int, steps: int, sizes: str = "cpu") -> list[dict[str, Any]]:
    """The rows of a workload, one for each list but the first.

    Args:
        letter: of the workload.
        rounds: fits of each list.
        steps: of a fit.
        sizes: a key of `SIZES`.
    """
    workload = SIZES[sizes][letter]
    _fit(workload, 10, NOTHING)
    fits: dict[str, list[tuple[Clock, float]]] = {name: [] for name in LISTS}
    for turn in range(rounds):
        for name in list(LISTS)[:: 1 if turn % 2 == 0 else -1]:
            fits[name].append(_fit(workload, steps, name))
    return [_row(workload, name, _OVER.get(name, NOTHING), fits) for name in LISTS if name != NOTHING]


def _fit(workload: Workload, steps: int, name: str) -> tuple[Clock, float]:
    """The clock of a fit, and its seconds with all that begins and ends it."""
    layout = Layout((OFF,), rounds=1, length=steps, warmup=0, lead=0)
    module, loader = workload.make(layout.steps)
    callbacks = [make() for make in LISTS[name]]
    started = time.perf_counter()
    clock = fit(module, loader, layout, [], always=callbacks, options=workload.options)
    return clock, time.perf_counter() - started


def _row(workload: Workload, name: str, over: str, fits: Mapping[str, Sequence[tuple[Clock, float]]]) -> dict[str, Any]:
    pairs = [(_Fit(*ours), _Fit(*base)) for ours, base in zip(fits[name], fits[over], strict=True)]
    return {
        "workload": workload.name,
        "title": workload.title,
        "what": name,
        "over": over,
        "rounds": len(pairs),
        "steps": len(pairs[0][1].steps),
        "step_ms": statistics.median(base.mean() for _, base in pairs) * 1e3,
        "whole": min(ours.seconds for ours, _ in pairs) / min(base.seconds for _, base in pairs),
        "mean": statistics.median(ours.mean() / base.mean() for ours, base in pairs),
        "late": statistics.median(ours.mean(EARLY) / base.mean(EARLY) for ours, base in pairs),
        "early_ms": statistics.median(ours.early() - base.early() for ours, base in pairs) * 1e3,
        "outside_ms": statistics.median(ours.outside() - base.outside() for ours, base in pairs) * 1e3,
    }


class _Fit:
    """A fit in parts.

    Args:
        clock: of its steps.
        seconds: of all.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        (self.steps,) = clock.blocks(OFF)
        self.seconds = seconds

    def mean(self, start: int = 0) -> float:
        """Of the steps from one on."""
        return statistics.fmean(self.steps[start:])

    def early(self) -> float:
        """What the first steps take more than as many later ones."""
        return sum(self.steps[:EARLY]) - EARLY * self.mean(EARLY)

    def outside(self) -> float:
        """What the fit takes before its first step and after its last."""
        return self.seconds - sum(self.steps)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in a process for each workload, and write."""
    parser = output.arguments("Measure and write.")
    parser.add_argument("--workloads", default="A,B,C,D")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, help=f"of a fit; default {STEPS}, of B, C and D 100 unless FULL=1")
    parser.add_argument("--sizes", choices=list(SIZES), default="cpu")
    options = parser.parse_args(arguments)
    if options.steps is not None and options.steps <= EARLY:
        parser.error(f"--steps must be greater than {EARLY}, the first steps that one of the means leaves out")
    rows: list[dict[str, Any]] = []
    for letter in options.workloads.split(","):
        steps = options.steps or (STEPS if letter == "A" or output.full() else 100)
        for row in output.in_new_process(measure, letter, options.rounds, steps, options.sizes):
            rows.append(row)
            print(
                f"{letter} {row['what']}: whole {row['whole']:.3f}, mean {row['mean']:.3f}, late {row['late']:.3f}", flush=True
            )
        output.write(options.name or "whole_fits", rows, options.out)


if __name__ == "__main__":
    main()
