"""What a step writes when the same schedules are due: prepared once, filled at every step in a few vector operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.engine.plan import Plan
from lightning_hooks.engine.rows import Due, Group, Row
from lightning_hooks.stats.merging import Derived, Merges, Statistics
from lightning_hooks.stats.record import Columns, Head, RolledUp
from lightning_hooks.stats.rollup import Labels, RollUp
from lightning_hooks.stats.scalars import STATISTICS, ratio_of_norms

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Alike = Sequence[tuple[Row, Indices]]
"""Rows of which the same is asked: the first of them, and the indices of all."""


class Column(NamedTuple):
    """One statistic of one tensor.

    Args:
        tensor: which.
        stat: what is computed of it, or `count`.
        names: of its rows.
        rows: their indices.
    """

    tensor: str
    stat: str
    names: tuple[str, ...]
    rows: Indices


def _joined(parts: Iterable[Indices]) -> Indices:
    return np.concatenate([*parts, np.zeros(0, dtype=np.intp)])


def _columns(plan: Plan, alike: Alike, due: Due) -> tuple[list[Column], list[Column]]:
    """The columns of what is counted, one for each tensor, and of its statistics."""
    counted: dict[str, list[Indices]] = {}
    written: dict[tuple[str, str], list[Indices]] = {}
    groups: list[tuple[Row | Group, Indices]] = [(group, np.array([group.index])) for group in plan.groups]
    for first, rows in (*alike, *groups):
        stats = first.asked(due)
        if stats:
            counted.setdefault(first.tensor, []).append(rows)
        for stat in stats:
            written.setdefault((first.tensor, stat), []).append(rows)
    known: dict[tuple[int, ...], tuple[tuple[str, ...], Indices]] = {}  # most columns have the rows of others

    def column(tensor: str, stat: str, parts: list[Indices]) -> Column:
        key = tuple(map(id, parts))
        if key not in known:
            rows = np.sort(_joined(parts))
            known[key] = tuple(map(plan.name, rows.tolist())), rows
        return Column(tensor, stat, *known[key])

    counts = [column(tensor, "count", parts) for tensor, parts in counted.items()]
    return counts, [column(tensor, stat, parts) for (tensor, stat), parts in written.items()]


class Layout:
    """The columns of one set of due schedules, and the unions of rows that are written with them.

    Args:
        plan: whose rows.
        due: the schedules.
        max_scalars: how many scalars there may be before rows are merged along the module tree.
        pinned: names whose scalars stay in full all the same.
        totals: tensors over all of whose rows a norm is asked for.
        prefix: of the tags of histograms.
    """

    def __init__(
        self, plan: Plan, due: Due, max_scalars: int, pinned: set[str], totals: Sequence[str], prefix: str = ""
    ) -> None:
        alike = plan.rows.alike()
        self.counts, members = _columns(plan, alike, due)
        drawn = [column for column in members if column.stat == "histogram"]
        self.drawn_tags = tuple(f"{prefix}{column.tensor}_histogram/{name}" for column in drawn for name in column.names)
        self.drawn_rows = _joined(column.rows for column in drawn)
        self.columns = [column for column in members if column.stat != "histogram"]
        self.scalars = sum(len(column.names) for column in self.columns)
        self.depth: int | None = None  # of the module tree, at which rows are merged
        self._unions: list[Indices] = []
        self._rows = len(plan.rows) + len(plan.groups)
        self._roll_up(plan, alike, due, max_scalars, pinned)
        self._totals = [tensor for tensor in totals if tensor in plan.tensors]
        unions = [self._union(np.sort(_joined(rows for first, rows in alike if first.tensor == t))) for t in self._totals]
        everything = self._union(np.arange(len(plan.rows)))
        merges = Merges(self._unions)
        del self._unions  # thousands of numbers, which the merges have too
        stats = tuple(dict.fromkeys([*(column.stat for column in members if column.stat in STATISTICS), "norm", "nonfinite"]))
        place = {stat: i for i, stat in enumerate(stats)}
        # One look-up for all that a step writes and that follows from moments; the other statistics are put in afterwards.
        width = self._rows + len(merges)
        every_column = [*self.columns, *self.counts]
        ends = np.cumsum([len(column.rows) for column in every_column], dtype=np.intp).tolist()
        self.heads = tuple(Head(*c[:3], slice(end - len(c.rows), end)) for c, end in zip(every_column, ends, strict=True))
        merged = [place.get(stat, 0) * width + row for stat, row in zip(self._merged_stats, self._merged_rows, strict=True)]
        self._merged_ratios = [i for i, stat in enumerate(self._merged_stats) if stat == "ratio"]
        places = {**place, "count": len(stats)}
        of_all = [*(place["norm"] * width + row for row in unions), place["nonfinite"] * width + everything]
        wanted = np.empty(sum(len(c.rows) for c in every_column) + len(merged) + len(of_all), dtype=np.int32)
        for column, head in zip(every_column, self.heads, strict=True):
            np.add(column.rows, places.get(column.stat, places["count"]) * width, out=wanted[head.place], casting="same_kind")
        wanted[ends[-1] if ends else 0 :] = [*merged, *of_all]
        self._statistics = Statistics(stats, merges, wanted)
        self._width = width
        self._ends = (len(wanted) - len(of_all) - len(merged), len(wanted) - len(of_all))
        self._all_there = np.broadcast_to(np.True_, len(wanted))
        self.others = [(c, head) for c, head in zip(self.columns, self.heads, strict=False) if c.stat not in STATISTICS]

    def _union(self, rows: Indices) -> int:
        self._unions.append(rows)
        return self._rows + len(self._unions) - 1

    def _roll_up(self, plan: Plan, alike: Alike, due: Due, max_scalars: int, pinned: set[str]) -> None:
        self._pinned: list[tuple[int, Indices, list[str]]] = []
        self._merged_tags: tuple[str, ...] = ()
        self._merged_stats: list[str] = []
        self._merged_rows: list[int] = []
        self._merged_below: list[int] = []
        if self.scalars <= max_scalars:
            return
        full = pinned | {group.name for group in plan.groups}
        for number, column in enumerate(self.columns):
            kept = [i for i, name in enumerate(column.names) if name in full]
            if kept:
                names = [f"{column.tensor}_{column.stat}/{column.names[i]}" for i in kept]
                self._pinned.append((number, np.array(kept, dtype=np.intp), names))
        fixed = sum(len(names) for _, _, names in self._pinned)
        written = [(first, rows) for first, rows in alike if first.asked(due)]
        labels = [Labels(first.tensor, first.asked(due), [plan.name(row) for row in rows]) for first, rows in written]
        indices = _joined(rows for _, rows in written)
        rollup = RollUp(labels, max(max_scalars - fixed, 0))
        self.depth = rollup.depth
        tags: list[str] = []
        for block in rollup.blocks:
            members = np.sort(indices[block.members])
            union = below = self._union(members)
            if "ratio" in block.stats:
                below = self._union(np.array([plan.param_row_of.get(row, row) for row in members.tolist()]))
            for stat in block.stats:
                tags.append(f"{block.tensor}_{stat}/{block.name}")
                self._merged_stats.append(stat)
                self._merged_rows.append(union)
                self._merged_below.append(below)
        self._merged_tags = tuple(tags)

    def rows_of_values(self) -> NDArray[np.int32]:
        """The row, group or union of each value; worked out anew, since most steps have all of them."""
        return self._statistics.wanted % self._width

    def fill(self, moments: Array) -> Filled:
        """Compute everything that follows from the moments of rows and groups.

        Args:
            moments: float64 [rows and groups, 9].
        """
        return Filled(self, self._statistics(moments))


class Filled:
    """The statistics of one step, until those of the next are computed.

    Args:
        layout: of what.
        derived: of its rows, groups and unions.
    """

    def __init__(self, layout: Layout, derived: Derived) -> None:
        self._layout = layout
        self._derived, self._values, self._complete = derived, derived.taken, derived.complete
        # Of most steps everything was measured.
        self._there = layout._all_there if self._complete else self.measured.take(layout.rows_of_values())

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Which rows, groups and unions have elements."""
        return self._derived.measured

    def columns(self) -> Columns:
        """The values of every column; those of `others` are still to be put in."""
        layout = self._layout
        columns = slice(layout._ends[0])
        there = self._there[columns]
        return Columns(layout.heads, self._values[columns], there.copy() if layout.others else there)

    def ratio(self, rows: Sequence[int] | Indices, below: Sequence[int] | Indices) -> Array:
        """The norm of some rows over that of others."""
        return ratio_of_norms(self._norms.take(rows), self._norms.take(below))

    @cached_property
    def _norms(self) -> Array:
        return self._derived.norms()

    def total_norms(self) -> dict[str, float]:
        """The norm over all rows of each tensor for which that is asked and of which any was measured."""
        totals = slice(self._layout._ends[1], -1)
        norms = dict(zip(self._layout._totals, self._values[totals].tolist(), strict=True))
        if not self._complete:
            norms = {tensor: norm for (tensor, norm), there in zip(norms.items(), self._there[totals], strict=True) if there}
        return norms

    @property
    def nonfinite(self) -> float:
        """How many elements of all rows are no finite numbers."""
        return float(self._values[-1]) if self._there[-1] else 0.0

    def merged(self, columns: Columns) -> RolledUp | None:
        """The scalar form where rows are merged along the module tree; None where they all fit.

        Args:
            columns: of the step, from which pinned names are taken.
        """
        layout = self._layout
        if layout.depth is None:
            return None
        merged = slice(*layout._ends)
        tags, values = layout._merged_tags, self._values[merged]
        for i in layout._merged_ratios:
            values[i] = self.ratio([layout._merged_rows[i]], [layout._merged_below[i]])[0]
        if self._complete and not layout._pinned:
            return RolledUp(tags, values)
        every = zip(tags, values.tolist(), self._there[merged].tolist(), strict=True)
        out = {tag: value for tag, value, is_there in every if is_there}
        for number, kept, names in layout._pinned:
            series = columns[number]
            found = zip(names, series.values.take(kept).tolist(), series.measured.take(kept).tolist(), strict=True)
            out.update((tag, value) for tag, value, is_there in found if is_there)
        return RolledUp.of(out)
