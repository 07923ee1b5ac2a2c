"""What the flight recorder takes: beside a monitor that watches everything at every step, and alone.

    python -m benchmarks.recorder --workloads A,D

Blocks with and without the recorder alternate inside one fit. Beside a monitor, the monitor watches in all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import output, per_workload
from benchmarks.blocks import OFF, Layout, compare
from benchmarks.clock import fit
from benchmarks.modes import CallbackMode, everything
from benchmarks.workloads import SIZES
from lightning_hooks import FlightRecorder, StatsMonitor

_RECORDER = "recorder"


def measure(letter: str, what: str, seconds: float, sizes: str = "cpu", device: str = "cpu") -> dict[str, Any]:
    """The row of a workload.

    Args:
        letter: of the workload.
        what: `beside` or `alone`.
        seconds: about how long it may take without the recorder.
        sizes: a key of `SIZES`.
        device: `cpu` or `cuda`.
    """
    workload = SIZES[sizes][letter]
    block = Layout((OFF, _RECORDER), rounds=1, length=20, warmup=4).block
    rounds = max(4, round(seconds * 1e3 / workload.step_ms / (2 * block)))
    layout = Layout((OFF, _RECORDER), rounds=rounds, length=20, warmup=4, lead=10)
    always = [StatsMonitor(watch=everything())] if what == "beside" else []
    modes = [CallbackMode(_RECORDER, FlightRecorder())]
    made = workload.make(layout.steps, device)
    clock = fit(*made, layout, modes, always=always, options=workload.options, device=device)
    step = statistics.median(statistics.median(block) for block in clock.blocks(OFF))
    return {
        "workload": workload.name,
        "title": workload.title,
        "what": what,
        "rounds": layout.rounds,
        "step_ms": step * 1e3,
        **asdict(compare(clock.blocks(_RECORDER), clock.blocks(OFF))),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    per_workload.run(_RECORDER, measure, ("beside", "alone"), per_workload.ratio, arguments, 40.0 if output.full() else 15.0)


if __name__ == "__main__":
    main()
