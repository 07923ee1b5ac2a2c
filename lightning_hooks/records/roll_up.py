"""Roll-up: chooses the level of the module tree for each statistic if there are more scalars than the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from lightning_hooks.plan.groups import block_of
from lightning_hooks.stats.statistics import STATISTICS

_FIRST: Final = ("norm", "ratio")
"""The statistics that get levels first. The other statistics follow in the order of the rules."""


class StageColumn(NamedTuple):
    """One statistic of one tensor in one stage.

    Args:
        stage: `train`, `validate`, `test` or `predict`.
        tensor: `grad`, `output[0]` …
        stat: `norm`, `p99` …
        names: the names of the rows, without groups.
        kept: the names of pinned rows and of groups, which are always written.
    """

    stage: str
    tensor: str
    stat: str
    names: tuple[str, ...]
    kept: frozenset[str] = frozenset()

    @property
    def mergeable(self) -> bool:
        """Whether the statistic of a block can be computed from the moments or histograms of its rows."""
        return self.stat in STATISTICS or self.stat in ("ratio", "histogram")


@dataclass(frozen=True)
class RollUp:
    """The level of each column, and the resulting numbers of scalars.

    Args:
        levels: the level of each column, by the position of the column; a column without a level writes only its kept names.
        level: the deepest level at which the first statistic of every tensor fits; at 0 all rows are merged into one.
        deepest: the level at which no rows are merged.
        written: the number of scalars that are written.
        total: the number of scalars without a limit.
        next_limit: the smallest limit that keeps the next level; at the deepest level, all scalars.
    """

    levels: Mapping[int, int]
    level: int
    deepest: int
    written: int
    total: int
    next_limit: int


def roll_up(columns: Sequence[StageColumn], limit: int) -> RollUp:
    """Choose a level for each column so that the number of scalars is within a limit.

    The first statistic of every tensor gets the deepest level at which the first statistics of all tensors fit. The other
    statistics then get deeper level by level, as far as the limit allows. A statistic that does not fit is not written.

    Args:
        columns: the columns of all stages.
        limit: the number of scalars that may be written.

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
    budget = max(limit - fixed, 0)
    level = 0
    while level < deepest and cost_of_first(level + 1) <= budget:
        level += 1
    levels: dict[int, int] = {}
    for i in first.values():
        if cost_of(i, level) <= budget:
            levels[i] = level
            budget -= cost_of(i, level)
    for depth in range(1, deepest + 1):
        for i in order:
            level_now = levels.get(i, 0)
            # Deepen a column by one level at a time: skip it if it is deeper already, or if its previous level did not fit into
            # the budget. A column whose statistic cannot be merged gets the deepest level or none.
            if level_now != depth - 1 if columns[i].mergeable else depth != deepest:
                continue
            more = cost_of(i, depth) - (cost_of(i, level_now) if i in levels else 0)
            if more <= budget:
                levels[i] = depth
                budget -= more
    written = fixed + sum(cost_of(i, at) for i, at in levels.items())
    next_limit = fixed + cost_of_first(level + 1) if level < deepest else total
    return RollUp(levels, level, deepest, written, total, next_limit)
