"""The schema of moments, which kernels measure, and of the statistics that follow from moments.

To add a statistic that follows from the moments, see "Where to add" in docs/internals.md.
The kernel in torch reads `MOMENTS`. A compiled kernel whose row has other moments is rejected when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.columns import Column, Reduction, merge_columns
from lightning_hooks.stats.row_states import Numbers

Array = NDArray[np.float64]


class Statistic(NamedTuple):
    """A number that follows from a row of moments.

    Args:
        name: the name in rules and tags.
        formula: maps moments float64 [..., 9] of rows with elements to values float64 [...]. It reads a column by
            `m[..., MEAN]`, because the moments may be `SeparateColumns` instead of an array.
        reads: the columns of the moments that the formula reads.
    """

    name: str
    formula: Callable[[Numbers], Array]
    reads: tuple[int, ...]

    @property
    def magnitudes(self) -> bool:
        """Whether the formula reads `abs_sum` or `underflow`, whose measurement costs extra."""
        return not {ABS_SUM, UNDERFLOW}.isdisjoint(self.reads)


MOMENTS: Final = (
    Column("count", merge="sum"),
    Column("mean", merge="mean", power=1),
    Column("m2", merge="m2", power=2),  # the sum of squared deviations from the mean
    Column("abs_sum", merge="sum", power=1),
    Column("min", merge="min", power=1),
    Column("max", merge="max", power=1),
    Column("zeros", merge="sum"),
    Column("nonfinite", merge="sum"),
    Column("underflow", merge="sum"),  # magnitudes above zero and below the smallest normal number of the dtype
)
NOT_ZERO: Final = tuple((column, moment.neutral) for column, moment in enumerate(MOMENTS) if moment.neutral)
"""The columns whose neutral value is not 0, each with this value."""
TRAIL_ENTRY: Final = np.dtype([(name, "f8") for name in ("row", "minimum", "maximum", "nonfinite", "abs_min")])
"""One noted measurement, as trails pack it: in Python, and compiled in `backends/src/trail.cpp`."""
COUNT, MEAN, M2, ABS_SUM, MIN, MAX, ZEROS, NONFINITE, UNDERFLOW = range(len(MOMENTS))


def merge_moments(rows: Any, how: Reduction) -> Any:
    """The moments of unions of rows. Every merge uses this function, except for `ranks.merge_reduced`.

    Args:
        rows: moments of the rows, a torch tensor or a NumPy array float64 [..., 9].
        how: assigns rows to unions.
    """
    return merge_columns(MOMENTS, rows, how)


def squares(m: Numbers) -> Array:
    """The sum of squares of every row, float64 [...], from moments as a formula of `Statistic` reads them."""
    with np.errstate(over="ignore", invalid="ignore"):
        return unguarded_squares(m)


def unguarded_squares(m: Numbers) -> Array:
    """As `squares`, for a caller inside `np.errstate`."""
    square: Array = m[..., M2] + m[..., COUNT] * np.square(m[..., MEAN])
    return square


def _abs_max(m: Numbers) -> Array:
    # np.maximum propagates NaN, which np.fmax would hide. A hidden NaN is worse than a gap in a chart.
    return np.maximum(np.abs(m[..., MIN]), np.abs(m[..., MAX]))


def _norm(m: Numbers) -> Array:
    value = np.sqrt(unguarded_squares(m))
    if np.isfinite(np.add.reduce(value, axis=None)):
        return value
    # If elements are infinite and none is NaN, the squared deviations are NaN (inf - inf), but the norm is infinite.
    return np.where(np.isinf(_abs_max(m)), np.inf, value)


STATISTICS: Final = (
    Statistic("mean", lambda m: m[..., MEAN], (MEAN,)),
    Statistic("std", lambda m: np.sqrt(m[..., M2] / m[..., COUNT]), (COUNT, M2)),
    Statistic("rms", lambda m: _norm(m) / np.sqrt(m[..., COUNT]), (COUNT, MEAN, M2, MIN, MAX)),
    Statistic("norm", _norm, (COUNT, MEAN, M2, MIN, MAX)),
    Statistic("abs_mean", lambda m: m[..., ABS_SUM] / m[..., COUNT], (COUNT, ABS_SUM)),
    Statistic("min", lambda m: m[..., MIN], (MIN,)),
    Statistic("max", lambda m: m[..., MAX], (MAX,)),
    Statistic("abs_max", _abs_max, (MIN, MAX)),
    Statistic("zero_fraction", lambda m: m[..., ZEROS] / m[..., COUNT], (COUNT, ZEROS)),
    Statistic("underflow_fraction", lambda m: m[..., UNDERFLOW] / m[..., COUNT], (COUNT, UNDERFLOW)),
    Statistic("nonfinite", lambda m: m[..., NONFINITE], (NONFINITE,)),
)
