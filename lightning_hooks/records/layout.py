"""The layout of what a step writes: prepared once for a set of due schedules, filled at every step by vector operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.plan.groups import block_of
from lightning_hooks.plan.row_index import Column, Indices, RowIndex, columns_of
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.histograms import BUCKET_LIMITS, NOTHING_DRAWN, Histograms
from lightning_hooks.records.step_view import STAGE_PREFIX, Series, StepView
from lightning_hooks.records.table_layout import Head, TableLayout, UnitVectors
from lightning_hooks.stats.moments import RowUnions
from lightning_hooks.stats.statistics import STATISTICS, RowStatistics, ratio

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LogEntry:
    """A step as loggers take it. Private to the consumers that write; all others read the step view.

    Args:
        step: the x-axis.
        prefix: put before every tag.
        heads: one for each series of a statistic; the same object at every step with the same series.
        values: of all series one after the other.
        measured: which of these there are.
        summaries: the global numbers and the reports of transforms, by tag without prefix.
        merged: tags without prefix and values of the scalars where rows are merged along the module tree; None where every
            measured row is a scalar.
        drawn_tags: whole tags of the histograms.
        drawn: their counts [tags, buckets].
        wall_time: when the step ended, in seconds since 1970; 0 for now.
        table: one for each series that goes into the table of an event file; None for the statistics.
        numbers: of these series one after the other.
    """

    step: int
    prefix: str = ""
    heads: tuple[Head, ...] = ()
    values: Array = field(default_factory=lambda: np.empty(0))
    measured: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    summaries: Mapping[str, float] = field(default_factory=dict)
    merged: tuple[tuple[str, ...], Array] | None = None
    drawn_tags: Sequence[str] = ()
    drawn: Array = field(default_factory=lambda: NOTHING_DRAWN)
    wall_time: float = 0.0
    table: tuple[Head, ...] | None = None
    numbers: Array = field(default_factory=lambda: np.empty(0))
    bucket_limits: ClassVar[Array] = BUCKET_LIMITS

    @property
    def series(self) -> list[Series]:
        """The statistics."""
        return [Series(*head[:3], self.values[head.span], self.measured[head.span]) for head in self.heads]

    @property
    def stored(self) -> tuple[tuple[Head, ...], Array]:
        """The series of the table in an event file, and the numbers of all of them."""
        return (self.heads, self.values) if self.table is None else (self.table, self.numbers)

    @property
    def scalars(self) -> dict[str, float]:
        """The scalar form, by whole tag."""
        rows = self._rows() if self.merged is None else zip(self.merged[0], self.merged[1].tolist(), strict=True)
        return {f"{self.prefix}{tag}": value for tag, value in itertools.chain(rows, self.summaries.items())}

    def _rows(self) -> Iterable[tuple[str, float]]:
        for series in self.series:
            if series.stat != "count":
                found = zip(series.names, series.values.tolist(), series.measured.tolist(), strict=True)
                yield from ((f"{series.tensor}_{series.stat}/{name}", value) for name, value, is_there in found if is_there)


class Levels(NamedTuple):
    """At which levels of the module tree a stage is written; see `Limits`.

    Args:
        scalars: by tensor and statistic; what is missing is not written. None where nothing is merged.
        histograms: the same of histograms.
        pinned: names that are never merged.
    """

    scalars: Mapping[tuple[str, str], int] | None = None
    histograms: Mapping[tuple[str, str], int] | None = None
    pinned: frozenset[str] = frozenset()


class _Merged(NamedTuple):
    """One scalar where rows are merged along the module tree.

    Args:
        tag: without prefix.
        stat: `norm`, `ratio` …
        row: index of a row, or of a union of rows, which come after all rows.
        below: for a ratio, that of the parameters; else as `row`.
    """

    tag: str
    stat: str
    row: int
    below: int


_IN_FULL = Levels()


class Layout:
    """The columns of one set of due schedules, and the unions of rows that are written with them.

    Args:
        rows: of the views.
        due: the schedules.
        levels: of the module tree at which rows are merged.

    Attributes:
        drawn_tags: whole tags of the histograms.
    """

    def __init__(self, rows: RowIndex, due: Due, stage: str = "train", prefix: str = "", levels: Levels = _IN_FULL) -> None:
        self.rows, self.due = rows, due
        self.prefix = f"{prefix}{STAGE_PREFIX[stage]}"
        counts, members = columns_of(rows, due)
        columns = [column for column in members if column.stat != "histogram"]
        self._histograms = Histograms(self._drawn([column for column in members if column.stat == "histogram"], levels))
        self.drawn_tags = self._histograms.tags
        # Where rows are merged: a column, those of its rows that are not, and their tags.
        self._full: list[tuple[int, Indices, list[str]]] = []
        self._merged: list[_Merged] = []
        self._merges = levels.scalars is not None
        unions: list[Indices] = []
        if levels.scalars is not None:
            unions = self._roll_up(columns, levels.scalars, levels.pinned)
        self._merged_tags = tuple(each.tag for each in self._merged)
        ratios = [(i, each.row, each.below) for i, each in enumerate(self._merged) if each.stat == "ratio"]
        self._ratios = np.array(ratios, dtype=np.intp).reshape(-1, 3).T
        merges = RowUnions(unions)
        # One look-up for all that a step writes and that follows from moments; the other statistics are put in afterwards.
        stats = tuple(dict.fromkeys(column.stat for column in members if column.stat in STATISTICS))
        position = {stat: i for i, stat in enumerate(stats)}
        self._width = len(rows) + len(merges)
        every = [*columns, *counts]
        ends = np.cumsum([len(column.rows) for column in every], dtype=np.intp).tolist()
        self.heads = tuple(Head(*c[:3], slice(end - len(c.rows), end)) for c, end in zip(every, ends, strict=True))
        self._end = ends[-1] if ends else 0
        wanted = np.empty(self._end + len(self._merged), dtype=np.intp)
        for column, head in zip(every, self.heads, strict=True):
            stat = position.get(column.stat, len(stats))  # counts come after all statistics
            wanted[head.span] = column.rows + stat * self._width
        wanted[self._end :] = [position.get(each.stat, 0) * self._width + each.row for each in self._merged]
        self._statistics = RowStatistics(stats, merges, wanted)
        self._all_there = np.broadcast_to(np.True_, len(wanted))
        self._others = [(c, head) for c, head in zip(columns, self.heads, strict=False) if c.stat not in STATISTICS]
        self._table = TableLayout(rows, counts, columns)
        self._vectors = UnitVectors(rows)

    def fill(self, view: StepView, *, draw: Sequence[str] | None = None) -> LogEntry:
        """What a step writes, at which these schedules were due; of the histograms those with these tags, or all."""
        derived = self._statistics(view.moments)
        taken = derived.taken
        there: NDArray[np.bool_] = self._all_there  # of most steps everything was measured
        if not derived.complete:
            there = derived.measured.take(self._statistics.wanted % self._width)
        values, measured = taken[: self._end], there[: self._end]
        if self._others:
            measured = measured.copy()
        for column, head in self._others:
            found = values[head.span] = view.values(column.stat, column.rows)
            measured[head.span] = view._are_measured(column.stat, column.rows, found)
        merged = None
        if self._merges:
            numbers = taken[self._end :]
            at, rows, below = self._ratios
            if len(at):
                norms = derived.norms()
                numbers[at] = ratio(norms[rows], norms[below])
                if not derived.complete:
                    there[self._end + at] &= derived.measured[below]
            merged = self._with_full(values, measured, numbers, there[self._end :], derived.complete)
        drawn_tags, drawn = self._histograms.fill(view, derived, self.drawn_tags if draw is None else draw)
        numbers = self._table.fill(view)
        heads, of_units = self._vectors.fill(view)
        end = len(numbers)
        moved = [head._replace(span=slice(head.span.start + end, head.span.stop + end)) for head in heads]
        return LogEntry(
            step=view.step,
            prefix=self.prefix,
            heads=self.heads,
            values=values,
            measured=measured,
            summaries=view.summaries,
            merged=merged,
            drawn_tags=drawn_tags,
            drawn=drawn,
            wall_time=view.wall_time,
            table=(*self._table.heads, *moved) if moved else self._table.heads,
            numbers=np.concatenate([numbers, of_units]) if moved else numbers,
        )

    def _with_full(
        self, values: Array, measured: NDArray[np.bool_], numbers: Array, there: NDArray[np.bool_], complete: bool
    ) -> tuple[tuple[str, ...], Array]:
        """The scalars of merged rows, with those that stay in full; the same tuple of tags where everything was measured."""
        if complete and not self._full:
            return self._merged_tags, numbers
        out = dict(itertools.compress(zip(self._merged_tags, numbers.tolist(), strict=True), there.tolist()))
        for number, kept, tags in self._full:
            span = self.heads[number].span
            found = zip(tags, values[span].take(kept).tolist(), strict=True)
            out.update(itertools.compress(found, measured[span].take(kept).tolist()))
        return tuple(out), np.array([*out.values()], dtype=np.float64)

    def _drawn(self, columns: list[Column], levels: Levels) -> dict[str, Indices]:
        """The rows of each histogram, by its tag."""
        parts: dict[str, Indices] = {}
        for column in columns:
            blocks = {name: [row] for name, row in zip(column.names, column.rows.tolist(), strict=True)}
            if levels.histograms is not None:
                level = levels.histograms.get((column.tensor, column.stat))
                kept = {n: rows for n, rows in blocks.items() if n in levels.pinned or rows[0] in self.rows.members}
                blocks = {**({} if level is None else self._blocks(column, level)), **kept}
            for name, rows in blocks.items():
                parts[f"{self.prefix}{column.tensor}_histogram/{name}"] = np.array(rows, dtype=np.intp)
        return parts

    def _blocks(self, column: Column, level: int) -> dict[str, list[int]]:
        """The rows of each block at a level of the module tree, without groups."""
        blocks: dict[str, list[int]] = {}
        for name, row in zip(column.names, column.rows.tolist(), strict=True):
            if row not in self.rows.members:
                blocks.setdefault(block_of(name, level), []).append(row)
        return blocks

    def _roll_up(self, columns: list[Column], levels: Mapping[tuple[str, str], int], pinned: frozenset[str]) -> list[Indices]:
        """Merge rows along the module tree, except pinned ones and those of groups; returns the unions of rows."""
        index = self.rows
        unions: dict[tuple[int, ...], int] = {}

        def united(rows: list[int]) -> int:
            return rows[0] if len(rows) == 1 else unions.setdefault(tuple(rows), len(index) + len(unions))

        for number, column in enumerate(columns):
            level = levels.get((column.tensor, column.stat))
            merges = level is not None and (column.stat in STATISTICS or column.stat == "ratio")
            in_full = level is not None and not merges
            kept = [
                i
                for i, (name, row) in enumerate(zip(column.names, column.rows.tolist(), strict=True))
                if in_full or name in pinned or row in index.members
            ]
            if kept:
                tags = [f"{column.tensor}_{column.stat}/{column.names[i]}" for i in kept]
                self._full.append((number, np.array(kept, dtype=np.intp), tags))
            if level is None or not merges:
                continue
            for name, rows in self._blocks(column, level).items():
                row = below = united(rows)
                if column.stat == "ratio":
                    below = united([index.param_row_of.get(member, member) for member in rows])
                self._merged.append(_Merged(f"{column.tensor}_{column.stat}/{name}", column.stat, row, below))
        return [np.array(rows, dtype=np.intp) for rows in unions]
