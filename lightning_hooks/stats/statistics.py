"""The scalar statistics: pure, vectorised functions of rows of moments. Their names and formulas are in `schema`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.rules import statistics as named
from lightning_hooks.rules.statistics import quantile_of
from lightning_hooks.stats import schema
from lightning_hooks.stats.moments import RowUnions
from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.schema import COUNT
from lightning_hooks.stats.units.statistics import NAMES as UNIT_STATS

Array = NDArray[np.float64]

DEFAULT_STATS: Final = ("mean", "std", "norm", "abs_max", "zero_fraction", "nonfinite")
STATISTICS: Final[dict[str, Callable[[Array], Array]]] = {stat.name: stat.formula for stat in schema.STATISTICS}
MAGNITUDE_STATS: Final = tuple(stat.name for stat in schema.STATISTICS if stat.magnitudes)
NAMES: Final = (*STATISTICS, "ratio", "histogram", "p1", "p50", "p99")

assert (*NAMES, *PAIR_STATS, *UNIT_STATS) == named.NAMES


def compute(stat: str, moments: Array) -> Array:
    """One statistic of many rows [rows, 9]: float64 [rows], NaN where a row holds no elements.

    Example:
        >>> row = np.array([[4.0, 0.5, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 0.0]])
        >>> compute("zero_fraction", row).tolist(), compute("std", row).tolist()
        ([0.5], [0.5])
    """
    values: Array = compute_all((stat,), moments)[0][0]
    return values


def compute_all(stats: Sequence[str], moments: Array) -> tuple[Array, bool]:
    """Several statistics of many rows [rows, 9], and the number of their elements.

    Returns:
        float64 [len(stats) + 1, rows], NaN where a row holds no elements, except for the number; and whether all have some.
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
    """Norm of the update over norm of the parameter before it: 0 where both are 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((update == 0) & (param == 0), 0.0, update / param)


def needs_histogram(stat: str) -> bool:
    """Whether a statistic is read from the log2 buckets."""
    return stat == "histogram" or quantile_of(stat) is not None


class Derived(NamedTuple):
    """What follows from the moments of a step.

    Args:
        moments: of rows and of unions, float64 [rows + unions, 9].
        taken: the requested values, float64, a vector; NaN where a row has no elements.
        complete: whether every row and union has elements.
    """

    moments: Array
    taken: Array
    complete: bool

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Which rows and unions have elements."""
        measured: NDArray[np.bool_] = self.moments[:, COUNT] > 0
        return measured

    def norms(self) -> Array:
        """The norms of all rows and unions."""
        return compute("norm", self.moments)


class RowStatistics:
    """Several statistics of rows and of unions of rows, computed together at every step.

    Args:
        stats: keys of `STATISTICS`.
        wanted: flat indices of the values to take, in what `compute_all` gives for rows and unions.
    """

    def __init__(self, stats: Sequence[str], unions: RowUnions, wanted: NDArray[np.intp]) -> None:
        self._stats = tuple(stats)
        self._unions = unions
        self.wanted = wanted

    def __call__(self, moments: Array) -> Derived:
        """The statistics of a step, from its moments [rows, 9]."""
        united = moments
        if len(self._unions):
            united = np.concatenate([moments, self._unions(moments)])
        every, complete = compute_all(self._stats, united)
        return Derived(united, every.take(self.wanted), complete)
