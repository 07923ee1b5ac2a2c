"""The numbers of accumulators in the form in which an event file stores them, and statistics computed from them.

This module imports no torch, so that runs can be read where torch is not installed. Numbers in an event file are float32. A
product of two measured numbers is stored as its square root: the root has the range of the measured numbers, and half the
relative error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats import pairs, schema
from lightning_hooks.stats.columns import Reduction, merge_columns
from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.row_states import SeparateColumns
from lightning_hooks.stats.schema import ABS_SUM, COUNT, M2, MEAN, UNDERFLOW
from lightning_hooks.stats.statistics import STATISTICS, compute, mean_of_function, ratio

Array = NDArray[np.float64]

_NAMED_AS_STATISTICS: Final = ("count", "mean", "min", "max", "nonfinite")
MOMENT_NAMES: Final = tuple(
    moment.name if moment.name in _NAMED_AS_STATISTICS else f"moments.{'deviation' if moment.merge == 'm2' else moment.name}"
    for moment in schema.MOMENTS
)
"""The name of each moment in an event file. A moment that is also a statistic has the name of the statistic; all other names
contain a dot."""
DEVIATION: Final = MOMENT_NAMES[M2]
"""The name whose presence tells that the moments of a tensor are stored. Older files store statistics only."""
PAIR_NAMES: Final = tuple(f"pairs.{column.name}" for column in pairs.COLUMNS)
_PRODUCTS: Final = {name for i, name in enumerate(PAIR_NAMES) if i != pairs.PARTS}
_WEIGHTED, _WEIGHT = ".weighted", ".weight"
STEPS: Final = "moments.steps"
"""The name of the number of steps that a window merges for each row; only windows have it."""
LEAST: Final = ".least"
GREATEST: Final = ".greatest"
"""The ends of the names of the extremes of a statistic that does not merge over the steps of a window."""


def function_names(name: str) -> tuple[str, str]:
    """The names under which an event file stores the weighted sum and the weight of a user's function.

    Example:
        >>> function_names("mean_abs")
        ('mean_abs.weighted', 'mean_abs.weight')
    """
    return f"{name}{_WEIGHTED}", f"{name}{_WEIGHT}"


def stored_moments(*, magnitudes: bool) -> list[int]:
    """The columns of moments that an event file stores.

    Args:
        magnitudes: whether the sum of magnitudes and underflow were requested; if not, their columns are omitted.

    Example:
        >>> stored_moments(magnitudes=False)
        [0, 1, 2, 4, 5, 6, 7]
    """
    return [column for column in range(len(schema.MOMENTS)) if magnitudes or column not in (ABS_SUM, UNDERFLOW)]


def encode_moments(moments: Array) -> Array:
    """Moments float64 [..., 9] as an event file stores them: the root of the squared deviations in their place.

    Example:
        >>> encode_moments(np.array([4.0, 1.0, 16.0, 4.0, 0.0, 2.0, 1.0, 0.0, 0.0])).tolist()
        [4.0, 1.0, 4.0, 4.0, 0.0, 2.0, 1.0, 0.0, 0.0]
    """
    stored = moments.copy()
    stored[..., M2] = np.sqrt(moments[..., M2])
    return stored


def encode_pairs(sums: Array) -> Array:
    """Sums over pairs of gradients, float64 [..., 7], as an event file stores them: roots, with the sign of the sum.

    The number of micro-batches is no product of measured numbers, so it is stored as it is.

    Example:
        >>> encode_pairs(np.array([-4.0, 9.0, 4.0, 16.0, 3.0, 0.0, 0.0])).tolist()
        [-2.0, 3.0, 2.0, 4.0, 3.0, 0.0, 0.0]
    """
    stored = np.sign(sums) * np.sqrt(np.abs(sums))
    stored[..., pairs.PARTS] = sums[..., pairs.PARTS]
    return stored


def _decoded(name: str, stored: Array) -> Array:
    """The numbers of this name; the inverse of `encode_moments` and `encode_pairs`."""
    if name == DEVIATION:
        return np.square(stored)
    return np.sign(stored) * np.square(stored) if name in _PRODUCTS else stored


class StoredRows:
    """The stored numbers of rows at some steps. The numbers of a name are read when a statistic first needs them.

    Args:
        names: the names of the stored numbers.
        read: returns the numbers of a name, float64 [rows, …]; NaN where a row was not written at a step.
        ranks: the number of ranks that were merged.
        squares: returns the squared norm of each row that has micro-batches, 0 for other rows; computed from the stored moments
            by default. The moments of a union may also cover rows without micro-batches.

    Example:
        >>> numbers = {"count": np.array([4.0, 0.0]), "moments.deviation": np.array([16.0, 0.0])}
        >>> StoredRows(numbers, numbers.__getitem__).compute("std").tolist()
        [2.0, nan]
    """

    def __init__(
        self,
        names: Collection[str],
        read: Callable[[str], Any],
        ranks: int = 1,
        squares: Callable[[], Array] | None = None,
    ) -> None:
        self.names = names
        self._read = read
        self._ranks = ranks
        # Keep None rather than a bound method: a reference to itself would leave all arrays to the garbage collector.
        self._given_squares = squares
        self._numbers: dict[str, Array] = {}

    def statistics(self) -> tuple[str, ...]:
        """The names of all statistics that can be computed."""
        if DEVIATION not in self.names:
            return tuple(self.names)
        of_moments = [stat.name for stat in schema.STATISTICS if all(MOMENT_NAMES[each] in self.names for each in stat.reads)]
        others = [name for name in self.names if name not in MOMENT_NAMES and name not in PAIR_NAMES and not _is_part(name)]
        functions = [name.removesuffix(_WEIGHTED) for name in self.names if name.endswith(_WEIGHTED)]
        return (*of_moments, *(PAIR_STATS if PAIR_NAMES[0] in self.names else ()), *functions, *others, "count")

    def numbers(self, name: str) -> Array:
        """The stored numbers of a name, float64 [rows, …], read once."""
        if name not in self._numbers:
            self._numbers[name] = self._read(name)
        return self._numbers[name]

    def compute(self, stat: str) -> Array:
        """A statistic of all rows, float64 [rows, …].

        Args:
            stat: one of `statistics()`, or a name of stored numbers.

        Returns:
            NaN for a row without elements; for `count` the stored count.
        """
        if DEVIATION not in self.names:
            return self.numbers(stat)
        if stat == "count" or stat in STATISTICS:
            return compute(stat, self._columns(MOMENT_NAMES))
        if stat in PAIR_STATS:
            return pairs.compute(stat, self._columns(PAIR_NAMES), self._squares_of_step)
        if function_names(stat)[0] in self.names:
            return mean_of_function(self._columns(function_names(stat)))
        return self.numbers(stat)

    def ratio_to(self, other: StoredRows) -> Array:
        """The norm of these rows over the norm of `other`, [rows, …]: 0 where both norms are 0.

        Args:
            other: the same number of rows at the same steps.
        """
        return ratio(self.compute("norm"), other.compute("norm"))

    def taken(self, rows: NDArray[np.intp]) -> StoredRows:
        """The stored numbers of some of the rows.

        Args:
            rows: their indices.
        """
        return StoredRows(self.names, lambda name: self.numbers(name)[rows], self._ranks, lambda: self._squares()[rows])

    def merges(self, stat: str) -> bool:
        """Whether a statistic of a union of rows follows from stored numbers. If not, `united` takes the greatest value."""
        if DEVIATION not in self.names:
            return False
        if stat in PAIR_STATS:
            return PAIR_NAMES[0] in self.names
        return stat == "count" or stat in STATISTICS or function_names(stat)[0] in self.names

    def united(self, how: Reduction) -> StoredRows:
        """The stored numbers of unions of rows.

        Args:
            how: assigns rows to unions.
        """

        def read(name: str) -> Array:
            if name in MOMENT_NAMES:
                return self._united_moment(MOMENT_NAMES.index(name), how)
            numbers = self.numbers(name)
            if name in PAIR_NAMES:
                column = pairs.COLUMNS[PAIR_NAMES.index(name)]
                stacked = np.nan_to_num(numbers, nan=column.neutral)[..., None]
                united: Array = merge_columns([column], stacked, how, over_rows=True)[..., 0]
                return united
            if _is_part(name):
                total: Array = how.total(np.nan_to_num(numbers))
                return total
            if name.endswith(LEAST):
                least: Array = how.least(np.where(np.isnan(numbers), np.inf, numbers))
                return np.where(np.isposinf(least), np.nan, least)
            greatest: Array = how.greatest(np.where(np.isnan(numbers), -np.inf, numbers))
            return np.where(np.isneginf(greatest), np.nan, greatest)

        return StoredRows(self.names, read, self._ranks, lambda: how.total(self._squares()))

    def _united_moment(self, column: int, how: Reduction) -> Array:
        # Merging a mean also needs the counts, and merging squared deviations needs counts and means.
        columns = sorted({column, *((COUNT,) if column == MEAN else (COUNT, MEAN) if column == M2 else ())})
        rules = [schema.MOMENTS[each] for each in columns]
        stored = self._columns(MOMENT_NAMES)
        has_elements = stored[..., COUNT] > 0
        moments = [np.where(has_elements, stored[..., each], schema.MOMENTS[each].neutral) for each in columns]
        with np.errstate(invalid="ignore", over="ignore"):
            united: Array = merge_columns(rules, np.stack(moments, axis=-1), how)[..., columns.index(column)]
            return united

    def _columns(self, names: Sequence[str]) -> SeparateColumns:
        return SeparateColumns(lambda column: self.numbers(names[column]))

    def _squares(self) -> Array:
        if self._given_squares is not None:
            return self._given_squares()
        with np.errstate(invalid="ignore", over="ignore"):
            return np.where(self.numbers(PAIR_NAMES[pairs.PARTS]) > 0, schema.squares(self._columns(MOMENT_NAMES)), 0.0)

    def _squares_of_step(self) -> Array:
        """The squared norm of the sum of the gradients of all micro-batches of all ranks, which the ranks have averaged."""
        return self._squares() * float(self._ranks) ** 2


def from_file(names: Collection[str], read: Callable[[str], Any], ranks: int = 1) -> StoredRows:
    """The stored numbers of rows, decoded from an event file.

    Args:
        names: the names of the stored numbers.
        read: returns the numbers of a name as the event file holds them, float32 [rows, …].
        ranks: the number of ranks that were merged.

    Example:
        >>> numbers = {"count": [4.0], "mean": [0.0], "moments.deviation": [4.0], "min": [-2.0], "max": [2.0]}
        >>> from_file(numbers, numbers.__getitem__).compute("norm").tolist()
        [4.0]
    """
    return StoredRows(names, lambda name: _decoded(name, np.asarray(read(name), dtype=np.float64)), ranks)


def _is_part(name: str) -> bool:
    """Whether a name is that of the weighted sum or the weight of a user's function."""
    return name.endswith((_WEIGHTED, _WEIGHT))


def asked_first(stats: Collection[str], asked: Sequence[str]) -> list[str]:
    """The statistics that rules requested, then the count; all statistics if no requested one is present.

    Args:
        stats: the statistics that can be computed.
        asked: the statistics that rules requested, empty if the rules are not known.

    Example:
        >>> asked_first(["mean", "norm", "count"], ["norm"])
        ['norm', 'count']
    """
    requested = [stat for stat in asked if stat in stats or stat == "ratio"]
    return [*requested, "count"] if requested else [*stats]
