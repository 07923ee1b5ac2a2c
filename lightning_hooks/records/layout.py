"""The layout of what a step writes: prepared once for a set of due schedules, filled at every step by vector operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.records.roll_up import Labels, RollUp
from lightning_hooks.records.row_index import Due, Indices, RowIndex, requested
from lightning_hooks.records.step_view import STAGE_PREFIX, Series, StepView
from lightning_hooks.stats.histogram import bucket_edges
from lightning_hooks.stats.moments import RowUnions
from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.statistics import STATISTICS, RowStatistics, ratio

Array = NDArray[np.float64]
BUCKET_LIMITS: Array = bucket_edges()[1:]


class Head(NamedTuple):
    """What a series is of, and where its values lie among those of all.

    Args:
        tensor: `grad`, `output[0]` …
        stat: `norm`, `p99`, or `count`.
        names: dotted names of the rows; the same object at every step with the same rows.
        span: of the values.
    """

    tensor: str
    stat: str
    names: tuple[str, ...]
    span: slice


@dataclass(frozen=True)
class LogEntry:
    """A step as loggers take it. Private to the consumers that write; all others read the step view.

    Args:
        step: the x-axis.
        prefix: put before every tag.
        heads: one for each series; the same object at every step with the same series.
        values: of all series one after the other.
        measured: which of these there are.
        summaries: the global numbers and the reports of transforms, by tag without prefix.
        merged: tags without prefix and values of the scalars where rows are merged along the module tree; None where every
            measured row is a scalar.
        drawn_tags: whole tags of the histograms.
        drawn: their counts [tags, buckets].
        wall_time: when the step ended, in seconds since 1970; 0 for now.
    """

    step: int
    prefix: str = ""
    heads: tuple[Head, ...] = ()
    values: Array = field(default_factory=lambda: np.empty(0))
    measured: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    summaries: Mapping[str, float] = field(default_factory=dict)
    merged: tuple[tuple[str, ...], Array] | None = None
    drawn_tags: Sequence[str] = ()
    drawn: Array = field(default_factory=lambda: np.empty((0, len(BUCKET_LIMITS))))
    wall_time: float = 0.0
    bucket_limits: ClassVar[Array] = BUCKET_LIMITS

    @property
    def series(self) -> list[Series]:
        """The table form."""
        return [Series(*head[:3], self.values[head.span], self.measured[head.span]) for head in self.heads]

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


def _joined(parts: Iterable[Indices]) -> Indices:
    return np.concatenate([*parts, np.zeros(0, dtype=np.intp)])


class _Column(NamedTuple):
    """One statistic of one tensor, or its `count`."""

    tensor: str
    stat: str
    names: tuple[str, ...]
    rows: Indices


def _columns(index: RowIndex, due: Due) -> tuple[list[_Column], list[_Column]]:
    """The columns of what is counted, one for each tensor, and of its statistics."""
    counted: dict[str, list[int]] = {}
    written: dict[tuple[str, str], list[int]] = {}
    every = (*index.alike, *index.groups)
    for i, alike in enumerate(every):
        stats = requested(alike.requests, due)
        if stats:
            counted.setdefault(alike.tensor, []).append(i)
        for stat in stats:
            written.setdefault((alike.tensor, stat), []).append(i)
    known: dict[tuple[int, ...], tuple[tuple[str, ...], Indices]] = {}  # most columns have the rows of others

    def column(tensor: str, stat: str, parts: list[int]) -> _Column:
        key = tuple(parts)
        if key not in known:
            rows = np.sort(_joined(every[i].rows for i in parts))
            known[key] = tuple(map(index.names.__getitem__, rows.tolist())), rows
        return _Column(tensor, stat, *known[key])

    counts = [column(tensor, "count", parts) for tensor, parts in counted.items()]
    return counts, [column(tensor, stat, parts) for (tensor, stat), parts in written.items()]


class _Merged(NamedTuple):
    """One scalar of rows that are merged along the module tree.

    Args:
        tag: without prefix.
        stat: `norm`, `ratio` …
        row: index of the union of rows, after all rows.
        below: for a ratio, that of the union of their parameters; else as `row`.
    """

    tag: str
    stat: str
    row: int
    below: int


class Layout:
    """The columns of one set of due schedules, and the unions of rows that are written with them.

    Args:
        rows: of the views.
        due: the schedules.
        stage: of the views.
        prefix: of the monitor.
        max_scalars: how many scalars there may be before rows are merged along the module tree; None for any number.
        pinned: names whose scalars stay in full all the same.

    `depth` is the level of the module tree at which rows are merged, None where they are not; `scalars` how many there are.
    """

    def __init__(
        self,
        rows: RowIndex,
        due: Due,
        stage: str = "train",
        prefix: str = "",
        max_scalars: int | None = None,
        pinned: Iterable[str] = (),
    ) -> None:
        self.rows, self.due = rows, due
        self.prefix = f"{prefix}{STAGE_PREFIX[stage]}"
        counts, members = _columns(rows, due)
        drawn = [column for column in members if column.stat == "histogram"]
        self._drawn_tags = tuple(f"{self.prefix}{column.tensor}_histogram/{name}" for column in drawn for name in column.names)
        self._drawn_rows = _joined(column.rows for column in drawn)
        self.columns = columns = [column for column in members if column.stat != "histogram"]
        self.scalars = sum(len(column.names) for column in columns)
        self.depth: int | None = None
        self._full: list[
            tuple[int, Indices, list[str]]
        ] = []  # where rows are merged: column, its rows that are not, their tags
        self._merged: list[_Merged] = []
        unions: list[Indices] = []
        if max_scalars is not None and self.scalars > max_scalars:
            unions = self._roll_up(columns, max_scalars, {*pinned})
        self._merged_tags = tuple(each.tag for each in self._merged)
        self._merged_ratios = [i for i, each in enumerate(self._merged) if each.stat == "ratio"]
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
            stat = len(stats) if column.stat == "count" else position.get(column.stat, len(stats))
            wanted[head.span] = column.rows + stat * self._width
        wanted[self._end :] = [position.get(each.stat, 0) * self._width + each.row for each in self._merged]
        self._statistics = RowStatistics(stats, merges, wanted)
        self._all_there = np.broadcast_to(np.True_, len(wanted))
        self._others = [(c, head) for c, head in zip(columns, self.heads, strict=False) if c.stat not in STATISTICS]

    @property
    def merged_tags(self) -> set[str]:
        """The whole tags of the scalars of merged rows."""
        return {f"{self.prefix}{tag}" for tag in self._merged_tags}

    def fill(self, view: StepView) -> LogEntry:
        """What a step writes, at which these schedules were due."""
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
            if column.stat in PAIR_STATS:  # needs a second gradient
                measured[head.span] &= ~np.isnan(found)
        merged = None
        if self.depth is not None:
            numbers = taken[self._end :]
            if self._merged_ratios:
                norms = derived.norms()
                for i in self._merged_ratios:
                    numbers[i] = ratio(norms[[self._merged[i].row]], norms[[self._merged[i].below]])[0]
            merged = self._with_full(values, measured, numbers, there[self._end :], derived.complete)
        drawn_tags, drawn_rows = self._drawn_tags, self._drawn_rows
        if drawn_tags and not derived.complete:
            drawn = derived.measured[drawn_rows]
            drawn_tags, drawn_rows = tuple(itertools.compress(drawn_tags, drawn)), drawn_rows[drawn]
        return LogEntry(
            step=view.step,
            prefix=self.prefix,
            heads=self.heads,
            values=values,
            measured=measured,
            summaries=view.summaries,
            merged=merged,
            drawn_tags=drawn_tags,
            drawn=view.histogram(drawn_rows) if len(drawn_tags) else np.empty((0, len(BUCKET_LIMITS))),
            wall_time=view.wall_time,
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

    def _roll_up(self, columns: list[_Column], max_scalars: int, pinned: set[str]) -> list[Indices]:
        """Merge rows along the module tree, except pinned ones and those of groups; returns the unions of rows."""
        index = self.rows
        full = pinned | {index.names[row] for row in index.members}
        for number, column in enumerate(columns):
            kept = [i for i, name in enumerate(column.names) if name in full]
            if kept:
                tags = [f"{column.tensor}_{column.stat}/{column.names[i]}" for i in kept]
                self._full.append((number, np.array(kept, dtype=np.intp), tags))
        fixed = sum(len(tags) for _, _, tags in self._full)
        written = [(each, stats) for each in index.alike if (stats := requested(each.requests, self.due))]
        labels = [Labels(each.tensor, stats, [index.names[row] for row in each.rows]) for each, stats in written]
        indices = _joined(each.rows for each, _ in written)
        rollup = RollUp(labels, max(max_scalars - fixed, 0))
        self.depth = rollup.depth
        unions: list[Indices] = []
        for block in rollup.blocks:
            members = np.sort(indices[block.members])
            unions.append(members)
            row = below = len(index) + len(unions) - 1
            if "ratio" in block.stats:
                unions.append(np.array([index.param_row_of.get(member, member) for member in members.tolist()]))
                below = row + 1
            for stat in block.stats:
                self._merged.append(_Merged(f"{block.tensor}_{stat}/{block.name}", stat, row, below))
        return unions
