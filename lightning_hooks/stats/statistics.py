"""Computes the statistics of rows from their moments. Names and formulas are in `schema`.

This module imports no torch, because runs are also read where torch is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.rules import statistics as named
from lightning_hooks.rules.statistics import quantile_of
from lightning_hooks.stats import schema
from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.row_states import Numbers
from lightning_hooks.stats.schema import COUNT
from lightning_hooks.stats.units.statistics import NAMES as UNIT_STATS

Array = NDArray[np.float64]

DEFAULT_STATS: Final = ("mean", "std", "norm", "abs_max", "zero_fraction", "nonfinite")
STATISTICS: Final = {stat.name: stat.formula for stat in schema.STATISTICS}
MAGNITUDE_STATS: Final = tuple(stat.name for stat in schema.STATISTICS if stat.magnitudes)
NAMES: Final = (*STATISTICS, "ratio", "histogram", "p1", "p50", "p99")

assert (*NAMES, *PAIR_STATS, *UNIT_STATS) == named.NAMES, (
    f"NAMES of rules/statistics.py must be, in this order, {(*NAMES, *PAIR_STATS, *UNIT_STATS)}, got {named.NAMES}"
)


def compute(stat: str, moments: Numbers) -> Array:
    """One statistic of many rows.

    Args:
        stat: `count`, or a key of `STATISTICS`.
        moments: float64 [..., 9], an array or `SeparateColumns`.

    Returns:
        float64 [...]; NaN for a row without elements, but for `count` its number of elements. May share the memory of the
        moments.

    Example:
        >>> row = np.array([[4.0, 0.5, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 0.0]])
        >>> compute("zero_fraction", row).tolist(), compute("std", row).tolist()
        ([0.5], [0.5])
    """
    if stat == "count":
        counts: Array = moments[..., COUNT]
        return counts
    (values,), missing = _evaluate((stat,), moments)
    return values if missing is None else np.where(missing, np.nan, values)


def compute_all(stats: Sequence[str], moments: Array) -> tuple[Array, bool]:
    """Several statistics of the rows of a step, and the number of elements of each row.

    Args:
        stats: keys of `STATISTICS`.
        moments: float64 [rows, 9].

    Returns:
        The statistics and, last, the number of elements, float64 [len(stats) + 1, rows]; statistics of a row without elements
        are NaN. And whether all rows have elements.
    """
    values, missing = _evaluate(stats, moments)
    out = np.empty((len(stats) + 1, len(moments)))
    for i, each in enumerate(values):
        out[i] = each
    if missing is not None:
        out[:-1, missing] = np.nan
    out[-1] = moments[:, COUNT]
    return out, missing is None


def _evaluate(stats: Sequence[str], moments: Numbers) -> tuple[list[Array], NDArray[np.bool_] | None]:
    """Each statistic of many rows, and which rows have no elements and hence no value; None if all have elements.

    Every statistic that follows from moments is computed here, whether they are those of a step, of several steps or of an
    event file.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        values = [STATISTICS[stat](moments) for stat in stats]
    # In a step at which an event file does not have a row, the count of the row is NaN, which is not above 0.
    have_elements = moments[..., COUNT] > 0
    return values, None if have_elements.all() else ~have_elements


def ratio_of_rows(moments: Array, updates: NDArray[np.intp], params: NDArray[np.intp]) -> Array:
    """The ratio of rows of updates to rows of parameters, float64 [..., updates]; NaN where one of both has no elements.

    Args:
        moments: of all rows, float64 [..., rows, 9].
        updates: the indices of the rows of updates.
        params: the index of the row of the parameter of each.
    """
    norms = compute("norm", moments[..., np.concatenate([updates, params]), :])
    return ratio(norms[..., : len(updates)], norms[..., len(updates) :])


def ratio(update: Array, param: Array) -> Array:
    """The norm of the update over the norm of the parameter before the update, [...]: 0 where both norms are 0."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.where((update == 0) & (param == 0), 0.0, update / param)


def mean_of_function(sums: Numbers) -> Array:
    """The mean of the values of a user's function, [...]; NaN for a row without values.

    Args:
        sums: float64 [..., 2], an array or `SeparateColumns`: the sum of the values, each times its weight, and the sum of the
            weights.
    """
    weighted, weight = sums[..., 0], sums[..., 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(weight > 0, weighted / weight, np.nan)


def needs_histogram(stat: str) -> bool:
    """Whether a statistic is computed from a histogram: the histogram itself, or a quantile."""
    return stat == "histogram" or quantile_of(stat) is not None
