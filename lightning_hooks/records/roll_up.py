"""Roll-up: the level of the module tree at which each statistic is written, where there are more scalars than the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from lightning_hooks.plan.groups import block_of
from lightning_hooks.stats.statistics import STATISTICS

_FIRST: Final = ("norm", "ratio")
"""The statistics that get the budget first; then the others, in the order in which rules ask for them."""


class StageColumn(NamedTuple):
    """One statistic of one tensor in one stage, as the roll-up knows it.

    Args:
        names: of the rows that can be merged.
        kept: names that are written in any case: of pinned rows and of groups.
    """

    stage: str
    tensor: str
    stat: str
    names: tuple[str, ...]
    kept: frozenset[str] = frozenset()

    @property
    def mergeable(self) -> bool:
        """Whether the statistic of a block follows from the moments of its rows, or is a sum of histograms."""
        return self.stat in STATISTICS or self.stat in ("ratio", "histogram")


@dataclass(frozen=True)
class RollUp:
    """What is written of each column.

    Args:
        levels: of each column by its position; a column that is missing is not written, but for the names it keeps.
        level: the deepest at which the first statistic of every tensor fits; 0 for one row for all.
        deepest: the level at which every row is its own.
        written: how many scalars there are.
        total: how many there would be without a limit.
        next_limit: the smallest limit that keeps the next level.
    """

    levels: Mapping[int, int]
    level: int
    deepest: int
    written: int
    total: int
    next_limit: int


def roll_up(columns: Sequence[StageColumn], limit: int) -> RollUp:
    """Spend a limit on columns: rows go before statistics, then the rest is filled level by level.

    The first statistic of every tensor takes the deepest level at which all of these fit. The other statistics then go down one
    level after the other as far as there is room. Those for which there is none are not written.

    Example:
        >>> names = tuple(f"layers.{i}.weight" for i in range(10))
        >>> found = roll_up([StageColumn("train", "grad", stat, names) for stat in ("mean", "norm", "std")], limit=12)
        >>> found.level, found.levels, found.written, found.next_limit
        (3, {1: 3, 0: 1, 2: 1}, 12, 30)
    """
    deepest = max((name.count(".") + 1 for column in columns for name in column.names), default=0)
    order = sorted(range(len(columns)), key=lambda i: _FIRST.index(columns[i].stat) if columns[i].stat in _FIRST else 2)
    first: dict[tuple[str, str], int] = {}
    for i in order:
        if columns[i].mergeable:
            first.setdefault((columns[i].stage, columns[i].tensor), i)

    @cache
    def cost(names: tuple[str, ...], kept: frozenset[str], level: int) -> int:
        return len({block_of(name, level) for name in names} - kept)

    def cost_of(i: int, level: int) -> int:
        return cost(columns[i].names, columns[i].kept, level)

    def cost_of_first(level: int) -> int:
        return sum(cost_of(i, level) for i in first.values())

    fixed = sum(len(column.kept) for column in columns)
    total = fixed + sum(cost_of(i, deepest) for i in range(len(columns)))
    left = max(limit - fixed, 0)
    level = 0
    while level < deepest and cost_of_first(level + 1) <= left:
        level += 1
    levels: dict[int, int] = {}
    for i in first.values():
        if cost_of(i, level) <= left:
            levels[i] = level
            left -= cost_of(i, level)
    for depth in range(1, deepest + 1):
        for i in order:
            now = levels.get(i, 0)
            if now != depth - 1 if columns[i].mergeable else depth != deepest:
                continue  # it is deeper already, or the level above did not fit
            more = cost_of(i, depth) - (cost_of(i, now) if i in levels else 0)
            if more <= left:
                levels[i] = depth
                left -= more
    written = fixed + sum(cost_of(i, at) for i, at in levels.items())
    next_limit = fixed + cost_of_first(level + 1) if level < deepest else total
    return RollUp(levels, level, deepest, written, total, next_limit)
