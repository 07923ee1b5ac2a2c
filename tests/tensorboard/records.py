"""Records as a monitor makes them, small enough to check by eye."""

import numpy as np

from lightning_hooks.stats.record import Series, StepRecord

NAMES = ("encoder.0.weight", "encoder.0.bias", "head")


def record(step: int, names: tuple[str, ...] = NAMES, prefix: str = "", histograms: bool = False) -> StepRecord:
    values = np.arange(len(names), dtype=np.float64) + step / 8
    values[-1] = np.nan
    counts = np.array([4.0] * (len(names) - 1) + [0.0])
    measured = counts > 0
    drawn = np.zeros(509)
    drawn[[100, 254, 300]] = [3.0, 5.0, 2.0]
    return StepRecord(
        step=step,
        prefix=prefix,
        series=[Series("grad", "norm", names, values, measured), Series("grad", "count", names, counts, measured)],
        summaries={"hooks/grad_norm": float(step)},
        histograms=[(f"{prefix}grad_histogram/{names[0]}", drawn)] if histograms else [],
    )
