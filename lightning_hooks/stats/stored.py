"""What accumulators keep, as it lies in an event file, and statistics from there. Needs no torch: a reader of runs may lack it.

Numbers in an event file are float32. What is a product of two measured numbers is stored as its root, so that it has the range
of the numbers themselves, and half their relative error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats import pairs, schema
from lightning_hooks.stats.columns import Reduction, merge_columns
from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.schema import ABS_SUM, COUNT, M2, MEAN, UNDERFLOW

Array = NDArray[np.float64]

_NAMED_AS_STATISTICS: Final = ("count", "mean", "min", "max", "nonfinite")
MOMENT_NAMES: Final = tuple(
    moment.name if moment.name in _NAMED_AS_STATISTICS else f"moments.{'deviation' if moment.merge == 'm2' else moment.name}"
    for moment in schema.MOMENTS
)
"""The name of each moment in an event file. Some are statistics too; the names of the others hold a dot."""
DEVIATION: Final = MOMENT_NAMES[M2]
"""The name by which a reader knows that a tensor's moments are stored: older files have statistics only."""
PAIR_NAMES: Final = tuple(f"pairs.{column.name}" for column in pairs.COLUMNS)
_PRODUCTS: Final = {name for i, name in enumerate(PAIR_NAMES) if i != pairs.PARTS}
_WEIGHTED, _WEIGHT = ".weighted", ".weight"
_BY_NAME: Final = {stat.name: stat for stat in schema.STATISTICS}


def function_names(name: str) -> tuple[str, str]:
    """The names under which the weighted sum and the weight of a user's function are stored."""
    return f"{name}{_WEIGHTED}", f"{name}{_WEIGHT}"


def stored_moments(*, magnitudes: bool) -> list[int]:
    """The columns of moments that are stored; those of magnitudes only where they are measured."""
    return [column for column in range(len(schema.MOMENTS)) if magnitudes or column not in (ABS_SUM, UNDERFLOW)]


def encode_moments(moments: Array) -> Array:
    """Moments [..., 9] as they are stored."""
    stored = moments.copy()
    stored[..., M2] = np.sqrt(moments[..., M2])
    return stored


def encode_pairs(sums: Array) -> Array:
    """Sums over pairs of gradients [..., 7] as they are stored: the root of each product, with the sign of the product."""
    stored = np.sign(sums) * np.sqrt(np.abs(sums))
    stored[..., pairs.PARTS] = sums[..., pairs.PARTS]
    return stored


def _decoded(name: str, stored: Array) -> Array:
    """The numbers of a name from what is stored."""
    if name == DEVIATION:
        return np.square(stored)
    return np.sign(stored) * np.square(stored) if name in _PRODUCTS else stored


class StoredRows:
    """What is stored of rows at some steps, each kind of number read when a statistic needs it.

    Args:
        names: of what is stored.
        read: gives the numbers of a name, float64 [rows, …]; NaN for rows that were not written at a step.
        ranks: how many were merged.

    Example:
        >>> numbers = {"count": np.array([4.0, 0.0]), "moments.deviation": np.array([16.0, 0.0])}
        >>> StoredRows(numbers, numbers.__getitem__).compute("std").tolist()
        [2.0, nan]
    """

    def __init__(self, names: Collection[str], read: Callable[[str], Any], ranks: int = 1) -> None:
        self.names = names
        self._read = read
        self._ranks = ranks
        self._known: dict[str, Array] = {}

    def statistics(self) -> tuple[str, ...]:
        """Every statistic that can be computed."""
        if DEVIATION not in self.names:
            return tuple(self.names)
        found = [stat.name for stat in schema.STATISTICS if all(MOMENT_NAMES[each] in self.names for each in stat.reads)]
        others = [name for name in self.names if name not in MOMENT_NAMES and name not in PAIR_NAMES and not _is_part(name)]
        functions = [name.removesuffix(_WEIGHTED) for name in self.names if name.endswith(_WEIGHTED)]
        return (*found, *(PAIR_STATS if PAIR_NAMES[0] in self.names else ()), *functions, *others, "count")

    def numbers(self, name: str) -> Array:
        """The numbers of a name, float64 [rows, …]."""
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def __getitem__(self, where: tuple[slice, int]) -> Array:
        """One moment of all rows, as formulas ask for it: `m[:, MEAN]`."""
        return self.numbers(MOMENT_NAMES[where[1]])

    def compute(self, stat: str) -> Array:
        """A statistic of all rows, float64 [rows, …]; NaN where nothing was measured, except for counts."""
        if stat == "count" or DEVIATION not in self.names:
            return self.numbers(stat)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            if stat in _BY_NAME:
                return np.where(self[:, COUNT] > 0, _BY_NAME[stat].formula(self), np.nan)
            if stat in PAIR_STATS:
                return self._of_pairs(stat)
            weighted, weight = function_names(stat)
            if weighted in self.names:
                return np.where(self.numbers(weight) > 0, self.numbers(weighted) / self.numbers(weight), np.nan)
        return self.numbers(stat)

    def ratio_to(self, other: StoredRows) -> Array:
        """The norm of these rows over that of others, which lie beside them: 0 where both are 0."""
        above, below = self.compute("norm"), other.compute("norm")
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where((above == 0) & (below == 0), 0.0, above / below)

    def taken(self, rows: NDArray[np.intp]) -> StoredRows:
        """What is stored of some of the rows."""
        return StoredRows(self.names, lambda name: self.numbers(name)[rows], self._ranks)

    def merges(self, stat: str) -> bool:
        """Whether the statistic of united rows follows from what is stored; otherwise it is the greatest of them."""
        return DEVIATION in self.names and (stat == "count" or stat in _BY_NAME or function_names(stat)[0] in self.names)

    def united(self, how: Reduction) -> StoredRows:
        """What is stored of unions of rows."""

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
            greatest: Array = how.greatest(np.where(np.isnan(numbers), -np.inf, numbers))
            return np.where(np.isneginf(greatest), np.nan, greatest)

        return StoredRows(self.names, read, self._ranks)

    def _united_moment(self, column: int, how: Reduction) -> Array:
        # A mean takes the counts too, and squared deviations both.
        taken = sorted({column, *((COUNT,) if column == MEAN else (COUNT, MEAN) if column == M2 else ())})
        rules = [schema.MOMENTS[each] for each in taken]
        is_there = self[:, COUNT] > 0
        stacked = np.stack([np.where(is_there, self[:, c], r.neutral) for c, r in zip(taken, rules, strict=True)], axis=-1)
        with np.errstate(invalid="ignore", over="ignore"):
            united: Array = merge_columns(rules, stacked, how)[..., taken.index(column)]
            return united

    def _of_pairs(self, stat: str) -> Array:
        sums = np.stack([self.numbers(name) for name in PAIR_NAMES], axis=-1)
        shape, flat = sums.shape[:-1], sums.reshape(-1, len(PAIR_NAMES))
        if stat == "cosine":
            values = pairs.cosine(flat)
        elif stat == "noise_scale":
            values = pairs.noise_scale(flat)
        else:
            values = pairs.micro_cosine(flat, schema.squares(self).reshape(-1) * float(self._ranks) ** 2)
        return values.reshape(shape)


def from_file(names: Collection[str], read: Callable[[str], Any], ranks: int = 1) -> StoredRows:
    """What is stored of rows, from the numbers as an event file has them.

    Args:
        names: of what is stored.
        read: gives the numbers of a name, float32 [rows, …].
        ranks: how many were merged.
    """
    return StoredRows(names, lambda name: _decoded(name, np.asarray(read(name), dtype=np.float64)), ranks)


def _is_part(name: str) -> bool:
    return name.endswith((_WEIGHTED, _WEIGHT))


def asked_first(stats: Collection[str], asked: Sequence[str]) -> list[str]:
    """The statistics for which rules ask, and the count; all of them if nothing is known of the rules."""
    wanted = [stat for stat in asked if stat in stats or stat == "ratio"]
    return [*wanted, "count"] if wanted else [*stats]
