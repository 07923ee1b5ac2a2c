"""The scalar statistics, computed by vectorised functions of rows of moments. Their names and formulas are in `schema`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.rules import statistics as named
from lightning_hooks.rules.statistics import quantile_of
from lightning_hooks.stats import schema
from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.schema import COUNT
from lightning_hooks.stats.units.statistics import NAMES as UNIT_STATS

Array = NDArray[np.float64]

DEFAULT_STATS: Final = ("mean", "std", "norm", "abs_max", "zero_fraction", "nonfinite")
STATISTICS: Final[dict[str, Callable[[Array], Array]]] = {stat.name: stat.formula for stat in schema.STATISTICS}
MAGNITUDE_STATS: Final = tuple(stat.name for stat in schema.STATISTICS if stat.magnitudes)
NAMES: Final = (*STATISTICS, "ratio", "histogram", "p1", "p50", "p99")

assert (*NAMES, *PAIR_STATS, *UNIT_STATS) == named.NAMES, (
    f"NAMES of rules/statistics.py must be, in this order, {(*NAMES, *PAIR_STATS, *UNIT_STATS)}, got {named.NAMES}"
)


def compute(stat: str, moments: Array) -> Array:
    """One statistic of many rows.

    Args:
        stat: a key of `STATISTICS`.
        moments: float64 [rows, 9].

    Returns:
        float64 [rows]; NaN for a row without elements.

    Example:
        >>> row = np.array([[4.0, 0.5, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 0.0]])
        >>> compute("zero_fraction", row).tolist(), compute("std", row).tolist()
        ([0.5], [0.5])
    """
    values: Array = compute_all((stat,), moments)[0][0]
    return values


def compute_all(stats: Sequence[str], moments: Array) -> tuple[Array, bool]:
    """Several statistics of many rows, and the number of elements of each row.

    Args:
        stats: keys of `STATISTICS`.
        moments: float64 [rows, 9].

    Returns:
        The statistics and, last, the number of elements, float64 [len(stats) + 1, rows]; statistics of a row without elements
        are NaN. And whether all rows have elements.
    """
    out = np.empty((len(stats) + 1, len(moments)))
    counts = out[-1] = moments[:, COUNT]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for i, stat in enumerate(stats):
            out[i] = STATISTICS[stat](moments)
    complete = bool(counts.all())
    if not complete:
        out[:-1, counts <= 0] = np.nan
    return out, complete


def ratio(update: Array, param: Array) -> Array:
    """The norm of the update over the norm of the parameter before the update, [rows]: 0 where both norms are 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((update == 0) & (param == 0), 0.0, update / param)


def needs_histogram(stat: str) -> bool:
    """Whether a statistic is computed from a histogram: the histogram itself, or a quantile."""
    return stat == "histogram" or quantile_of(stat) is not None
