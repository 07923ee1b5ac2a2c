"""The schema of moments, which kernels measure, and of the statistics that follow from them.

To add a statistic that follows from the moments, add a line to `STATISTICS`, its name to `rules.statistics.NAMES`, and its
test: tables, tags and messages take their names from there, and a test holds docs/rules.md and docs/statistics.md against them.
NumPy and torch read the moments from here too; the compiled kernel is not used where its row of moments differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Moment(NamedTuple):
    """One number of a row of moments.

    Args:
        name: of the field in the kernels.
        merge: the rule for the union of disjoint sets of elements; `mean` and `m2` follow Chan's rule.
        power: multiplying all elements by a factor multiplies the moment by this power of the factor.
    """

    name: str
    merge: Literal["sum", "mean", "m2", "min", "max"]
    power: int = 0

    @property
    def neutral(self) -> float:
        """The value for no elements: merging with it changes nothing."""
        return {"min": np.inf, "max": -np.inf}.get(self.merge, 0.0)


class Statistic(NamedTuple):
    """A number that follows from a row of moments.

    Args:
        name: in rules and tags.
        formula: from rows that have elements, float64 [rows, moments], to values [rows].
        magnitudes: whether it reads `abs_sum` or `underflow`, which cost extra to measure.
    """

    name: str
    formula: Callable[[Array], Array]
    magnitudes: bool = False


MOMENTS: Final = (
    Moment("count", "sum"),
    Moment("mean", "mean", power=1),
    Moment("m2", "m2", power=2),  # the sum of squared deviations from the mean
    Moment("abs_sum", "sum", power=1),
    Moment("min", "min", power=1),
    Moment("max", "max", power=1),
    Moment("zeros", "sum"),
    Moment("nonfinite", "sum"),
    Moment("underflow", "sum"),  # magnitudes above zero and below the smallest normal number of the dtype
)
NOT_ZERO: Final = tuple((column, moment.neutral) for column, moment in enumerate(MOMENTS) if moment.neutral)
"""The columns of a row without elements that are not 0, with their values."""
COUNT, MEAN, M2, ABS_SUM, MIN, MAX, ZEROS, NONFINITE, UNDERFLOW = range(len(MOMENTS))


def _abs_max(m: Array) -> Array:
    # np.maximum propagates NaN: a hidden NaN is worse than a gap in a chart.
    return np.maximum(np.abs(m[:, MIN]), np.abs(m[:, MAX]))


def _norm(m: Array) -> Array:
    value = np.sqrt(m[:, M2] + m[:, COUNT] * np.square(m[:, MEAN]))
    if np.isfinite(np.add.reduce(value)):
        return value
    # With an infinity and no NaN the deviations are inf - inf, but the sum of squares itself is infinite.
    return np.where(np.isinf(_abs_max(m)), np.inf, value)


STATISTICS: Final = (
    Statistic("mean", lambda m: m[:, MEAN]),
    Statistic("std", lambda m: np.sqrt(m[:, M2] / m[:, COUNT])),
    Statistic("rms", lambda m: _norm(m) / np.sqrt(m[:, COUNT])),
    Statistic("norm", _norm),
    Statistic("abs_mean", lambda m: m[:, ABS_SUM] / m[:, COUNT], magnitudes=True),
    Statistic("min", lambda m: m[:, MIN]),
    Statistic("max", lambda m: m[:, MAX]),
    Statistic("abs_max", _abs_max),
    Statistic("zero_fraction", lambda m: m[:, ZEROS] / m[:, COUNT]),
    Statistic("underflow_fraction", lambda m: m[:, UNDERFLOW] / m[:, COUNT], magnitudes=True),
    Statistic("nonfinite", lambda m: m[:, NONFINITE]),
)
