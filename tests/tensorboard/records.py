"""Log entries as a monitor makes them, small enough to check by eye."""

import numpy as np

from lightning_hooks.records.entry import LogEntry
from lightning_hooks.records.table_layout import SeriesHeader

NAMES = ("encoder.0.weight", "encoder.0.bias", "head")
_HEADERS: dict[tuple[str, ...], tuple[SeriesHeader, ...]] = {}


def headers_of(names: tuple[str, ...]) -> tuple[SeriesHeader, ...]:
    """A norm and a count; the same object for the same names, as a layout has it."""
    n = len(names)
    made = SeriesHeader("grad", "norm", names, slice(0, n)), SeriesHeader("grad", "count", names, slice(n, 2 * n))
    return _HEADERS.setdefault(names, made)


def record(
    step: int,
    names: tuple[str, ...] = NAMES,
    prefix: str = "",
    histograms: bool = False,
    merged: dict[str, float] | None = None,
) -> LogEntry:
    values = np.arange(len(names), dtype=np.float64) + step / 8
    values[-1] = np.nan
    counts = np.array([4.0] * (len(names) - 1) + [0.0])
    measured = counts > 0
    drawn = np.zeros((1, 509))
    drawn[0, [100, 254, 300]] = [3.0, 5.0, 2.0]
    return LogEntry(
        step=step,
        prefix=prefix,
        headers=headers_of(names),
        values=np.concatenate([values, counts]),
        measured=np.concatenate([measured, measured]),
        summaries={"run/grad_norm": float(step)},
        merged=None if merged is None else (tuple(merged), np.array([*merged.values()])),
        histogram_tags=[f"{prefix}grad_histogram/{names[0]}"] if histograms else [],
        histogram_counts=drawn[: int(histograms)],
    )
