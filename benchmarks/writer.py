"""What a logged step costs to write, per value, beside `add_scalar`.

python -m benchmarks.writer
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from benchmarks import output
from benchmarks.repeat import repeat
from lightning_hooks.records.entry import LogEntry
from lightning_hooks.records.table_layout import SeriesHeader
from lightning_hooks.tensorboard import StepEventWriter

VALUES = 1000
_BURST = 20  # steps between two flushes


def records() -> dict[str, Callable[[int], LogEntry]]:
    """The same thousand values as scalars, as a table, and as both, which is how a monitor writes a small model."""
    names = tuple(f"net.layers.{i}.weight" for i in range(VALUES))
    values = np.random.default_rng(0).normal(size=VALUES)
    measured = np.ones(VALUES, dtype=np.bool_)
    headers = (SeriesHeader("grad", "norm", names, slice(0, VALUES)),)  # as a monitor makes them: the same at every step
    tags = tuple(f"grad_norm/{name}" for name in names)
    none: tuple[tuple[str, ...], Any] = ((), np.empty(0))
    return {
        "scalars": lambda step: LogEntry(step, merged=(tags, values)),
        "table": lambda step: LogEntry(step, headers=headers, values=values, measured=measured, merged=none),
        "both": lambda step: LogEntry(step, headers=headers, values=values, measured=measured),
    }


def measure(form: str, write: Callable[[SummaryWriter], Callable[[int], object]], seconds: float) -> dict[str, Any]:
    """One row: microseconds a value that the caller waits for, and with the work of the writer's own thread.

    The second is what counts where nobody is idle: the thread holds the interpreter lock for most of its work.

    Args:
        form: its name.
        write: makes the function that writes one step.
        seconds: for each figure.
    """
    with TemporaryDirectory() as folder:
        writer = SummaryWriter(folder)
        step = write(writer)
        for number in range(3):  # the first one explains the rows
            step(number)
        writer.flush()
        before = _size(folder)
        steps = 0

        def burst() -> None:
            nonlocal steps
            for _ in range(_BURST):
                step(steps)
                steps += 1

        def burst_and_flush() -> None:
            burst()
            writer.flush()

        waiting = repeat(burst, seconds, before=writer.flush).median / _BURST
        writer.flush()
        started_at, steps = _size(folder), 0
        whole = repeat(burst_and_flush, seconds).best / _BURST
        size = (_size(folder) - started_at) / steps
        writer.close()
        assert started_at > before
    return {
        "form": form,
        "values": VALUES,
        "call_us": waiting * 1e6 / VALUES,
        "whole_us": whole * 1e6 / VALUES,
        "bytes": size / VALUES,
    }


def rows_of(seconds: float) -> list[dict[str, Any]]:
    """The table: our three forms, and `add_scalar`."""

    def ours(record: Callable[[int], LogEntry]) -> Callable[[SummaryWriter], Callable[[int], object]]:
        def make(writer: SummaryWriter) -> Callable[[int], object]:
            run = StepEventWriter(writer)
            return lambda step: run.write(record(step))

        return make

    def plain(writer: SummaryWriter) -> Callable[[int], object]:
        tags = [f"grad_norm/net.layers.{i}.weight" for i in range(VALUES)]

        def step(number: int) -> None:
            for tag in tags:
                writer.add_scalar(tag, 1.0, number)

        return step

    rows = [measure(form, ours(record), seconds) for form, record in records().items()]
    return [*rows, measure("add_scalar", plain, seconds)]


def _size(folder: str) -> int:
    time.sleep(0.01)
    return sum(path.stat().st_size for path in Path(folder).iterdir())


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--seconds", type=float, default=3.0 if output.full() else 0.5)
    options = parser.parse_args(arguments)
    rows = rows_of(options.seconds)
    for row in rows:
        print(f"{row['form']}: {row['call_us']:.2f} µs a value in the call, {row['whole_us']:.2f} µs in all", flush=True)
    output.write(options.name or "writer", rows, options.out)


if __name__ == "__main__":
    main()
