"""What a step writes: laid out once for a set of due schedules, then filled at each step by vector operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.plan.groups import block_of
from lightning_hooks.plan.row_index import Indices, RowIndex, StatColumn, columns_of
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.histograms import BUCKET_LIMITS, NO_HISTOGRAMS, Histograms
from lightning_hooks.records.step_view import STAGE_PREFIX, Series, StepView
from lightning_hooks.records.table_layout import SeriesHeader, TableLayout, UnitVectors
from lightning_hooks.stats.moments import RowUnions
from lightning_hooks.stats.statistics import STATISTICS, RowStatistics, ratio

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LogEntry:
    """A step in the form in which loggers write it. Consumers that do not write files read the step view instead.

    Args:
        step: the x-axis.
        prefix: the text before every tag.
        headers: the series of statistics; the same tuple at every step with the same series.
        values: the values of all series, concatenated.
        measured: whether each of these values was measured.
        summaries: the global numbers and the reports of transforms, by tag without prefix.
        merged: the tags without prefix and the values of the scalars if rows are merged along the module tree; None if every
            measured value is a scalar.
        histogram_tags: the tags of the histograms, with prefix.
        histogram_counts: the counts of the histograms [tags, buckets].
        wall_time: the time at which the step ended, in seconds since 1970; 0 for now.
        table: the series in the table of an event file; None if they are the series of statistics.
        table_values: the values of the series in `table`, concatenated.
        facts: the facts of the step that differ from those of the step before, as JSON; empty if there are none.
        monitor: the prefix of the monitor, without that of the stage.
    """

    step: int
    prefix: str = ""
    headers: tuple[SeriesHeader, ...] = ()
    values: Array = field(default_factory=lambda: np.empty(0))
    measured: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    summaries: Mapping[str, float] = field(default_factory=dict)
    merged: tuple[tuple[str, ...], Array] | None = None
    histogram_tags: Sequence[str] = ()
    histogram_counts: Array = field(default_factory=lambda: NO_HISTOGRAMS)
    wall_time: float = 0.0
    table: tuple[SeriesHeader, ...] | None = None
    table_values: Array = field(default_factory=lambda: np.empty(0))
    facts: str = ""
    monitor: str = ""
    bucket_limits: ClassVar[Array] = BUCKET_LIMITS

    @property
    def series(self) -> list[Series]:
        """The series of statistics."""
        return [Series(*header[:3], self.values[header.span], self.measured[header.span]) for header in self.headers]

    @property
    def table_series(self) -> tuple[tuple[SeriesHeader, ...], Array]:
        """The series in the table of an event file, and their values, concatenated."""
        return (self.headers, self.values) if self.table is None else (self.table, self.table_values)

    @property
    def scalars(self) -> dict[str, float]:
        """All scalars of the step, by tag with prefix."""
        rows = self._rows() if self.merged is None else zip(self.merged[0], self.merged[1].tolist(), strict=True)
        return {f"{self.prefix}{tag}": value for tag, value in itertools.chain(rows, self.summaries.items())}

    def _rows(self) -> Iterable[tuple[str, float]]:
        for series in self.series:
            if series.stat != "count":
                points = zip(series.names, series.values.tolist(), series.measured.tolist(), strict=True)
                yield from ((f"{series.tensor}_{series.stat}/{name}", value) for name, value, measured in points if measured)


class Levels(NamedTuple):
    """The levels of the module tree at which a stage merges rows; see `Limits`.

    Args:
        scalars: the level of each tensor and statistic; a statistic without a level is not written. None if no rows are merged.
        histograms: the same for histograms.
        pinned: the names of rows that are never merged.
    """

    scalars: Mapping[tuple[str, str], int] | None = None
    histograms: Mapping[tuple[str, str], int] | None = None
    pinned: frozenset[str] = frozenset()


class _Merged(NamedTuple):
    """One scalar if rows are merged along the module tree.

    Args:
        tag: the tag without prefix.
        stat: `norm`, `ratio` …
        row: the index of a row or of a union of rows; unions follow after all rows.
        param_row: for a ratio the row or union of the parameters; otherwise equal to `row`.
    """

    tag: str
    stat: str
    row: int
    param_row: int


_UNMERGED = Levels()


class EntryLayout:
    """The columns that a set of due schedules requests, and the unions of rows whose scalars are written instead of rows.

    Args:
        rows: the row index of the views.
        due: the schedules that are due.
        stage: the stage of the views.
        prefix: the monitor's prefix of tags.
        levels: the levels of the module tree at which rows are merged; default: no rows are merged.

    Attributes:
        headers: the series of statistics.
        histogram_tags: the tags of the histograms, with prefix.
    """

    def __init__(self, rows: RowIndex, due: Due, stage: str = "train", prefix: str = "", levels: Levels = _UNMERGED) -> None:
        self.rows, self.due = rows, due
        self.prefix = f"{prefix}{STAGE_PREFIX[stage]}"
        counts, stat_columns = columns_of(rows, due)
        columns = [column for column in stat_columns if column.stat != "histogram"]
        self._histograms = Histograms(
            self._histogram_rows([column for column in stat_columns if column.stat == "histogram"], levels)
        )
        self.histogram_tags = self._histograms.tags
        # If rows are merged, each entry has the position of a column, the positions of the rows of the column that are not
        # merged, and the tags of these rows.
        self._unmerged: list[tuple[int, Indices, list[str]]] = []
        self._merged: list[_Merged] = []
        self._merges = levels.scalars is not None
        unions: list[Indices] = []
        if levels.scalars is not None:
            unions = self._roll_up(columns, levels.scalars, levels.pinned)
        self._merged_tags = tuple(each.tag for each in self._merged)
        ratios = [(i, each.row, each.param_row) for i, each in enumerate(self._merged) if each.stat == "ratio"]
        self._ratios = np.array(ratios, dtype=np.intp).reshape(-1, 3).T
        merges = RowUnions(unions)
        # One look-up takes all values that follow from moments. `fill` computes the other statistics afterwards.
        stats = tuple(dict.fromkeys(column.stat for column in stat_columns if column.stat in STATISTICS))
        position = {stat: i for i, stat in enumerate(stats)}
        self._width = len(rows) + len(merges)
        series = [*columns, *counts]
        ends = np.cumsum([len(column.rows) for column in series], dtype=np.intp).tolist()
        self.headers = tuple(SeriesHeader(*c[:3], slice(end - len(c.rows), end)) for c, end in zip(series, ends, strict=True))
        self._end = ends[-1] if ends else 0
        flat = np.empty(self._end + len(self._merged), dtype=np.intp)
        for column, header in zip(series, self.headers, strict=True):
            # `RowStatistics` puts the counts after all statistics. A statistic that `fill` computes has no position: it takes
            # the place of the counts, and `fill` overwrites its values.
            stat = position.get(column.stat, len(stats))
            flat[header.span] = column.rows + stat * self._width
        flat[self._end :] = [position.get(each.stat, 0) * self._width + each.row for each in self._merged]
        self._statistics = RowStatistics(stats, merges, flat)
        self._all_measured = np.broadcast_to(np.True_, len(flat))
        self._others = [(c, header) for c, header in zip(columns, self.headers, strict=False) if c.stat not in STATISTICS]
        self._table = TableLayout(rows, counts, columns)
        self._vectors = UnitVectors(rows)

    def fill(self, view: StepView, *, histograms: Sequence[str] | None = None) -> LogEntry:
        """The entry of a step at which these schedules were due.

        Args:
            view: the view of the step.
            histograms: the tags of the histograms to write; default all.
        """
        step = self._statistics(view.moments)
        # Begin with the constant for "all rows", because most steps measure all rows.
        is_measured: NDArray[np.bool_] = self._all_measured
        if not step.complete:
            is_measured = step.measured.take(self._statistics.positions % self._width)
        values, measured = step.values[: self._end], is_measured[: self._end]
        if self._others:
            measured = measured.copy()
        for column, header in self._others:
            column_values = values[header.span] = view.values(column.stat, column.rows)
            measured[header.span] = view._are_measured(column.stat, column.rows, column_values)
        merged = None
        if self._merges:
            merged_values = step.values[self._end :]
            at, rows, param_rows = self._ratios
            if len(at):
                norms = step.norms()
                merged_values[at] = ratio(norms[rows], norms[param_rows])
                if not step.complete:
                    is_measured[self._end + at] &= step.measured[param_rows]
            merged = self._add_unmerged(values, measured, merged_values, is_measured[self._end :], step.complete)
        histogram_tags, histogram_counts = self._histograms.fill(
            view, step, self.histogram_tags if histograms is None else histograms
        )
        table_values = self._table.fill(view)
        headers, unit_numbers = self._vectors.fill(view)
        end = len(table_values)
        moved = [header._replace(span=slice(header.span.start + end, header.span.stop + end)) for header in headers]
        return LogEntry(
            step=view.step,
            prefix=self.prefix,
            headers=self.headers,
            values=values,
            measured=measured,
            summaries=view.summaries,
            merged=merged,
            histogram_tags=histogram_tags,
            histogram_counts=histogram_counts,
            wall_time=view.wall_time,
            table=(*self._table.headers, *moved) if moved else self._table.headers,
            table_values=np.concatenate([table_values, unit_numbers]) if moved else table_values,
        )

    def _add_unmerged(
        self, values: Array, measured: NDArray[np.bool_], merged_values: Array, is_measured: NDArray[np.bool_], complete: bool
    ) -> tuple[tuple[str, ...], Array]:
        """The tags and values of the merged scalars and of the rows that stay unmerged.

        If every row was measured and no row stays unmerged, the method returns the same tuple of tags at every step, because a
        writer recognises this object faster than an equal tuple.

        Args:
            values: the values of all series, concatenated.
            measured: whether each of these values was measured.
            merged_values: the values of the merged scalars.
            is_measured: whether each merged scalar was measured.
            complete: whether every row was measured.
        """
        if complete and not self._unmerged:
            return self._merged_tags, merged_values
        out = dict(itertools.compress(zip(self._merged_tags, merged_values.tolist(), strict=True), is_measured.tolist()))
        for number, unmerged, tags in self._unmerged:
            span = self.headers[number].span
            scalars = zip(tags, values[span].take(unmerged).tolist(), strict=True)
            out.update(itertools.compress(scalars, measured[span].take(unmerged).tolist()))
        return tuple(out), np.array([*out.values()], dtype=np.float64)

    def _histogram_rows(self, columns: list[StatColumn], levels: Levels) -> dict[str, Indices]:
        """The rows of each histogram, by its tag with prefix."""
        rows_by_tag: dict[str, Indices] = {}
        for column in columns:
            blocks = {name: [row] for name, row in zip(column.names, column.rows.tolist(), strict=True)}
            if levels.histograms is not None:
                level = levels.histograms.get((column.tensor, column.stat))
                unmerged = {n: rows for n, rows in blocks.items() if n in levels.pinned or rows[0] in self.rows.members}
                blocks = {**({} if level is None else self._blocks(column, level)), **unmerged}
            for name, rows in blocks.items():
                rows_by_tag[f"{self.prefix}{column.tensor}_histogram/{name}"] = np.array(rows, dtype=np.intp)
        return rows_by_tag

    def _blocks(self, column: StatColumn, level: int) -> dict[str, list[int]]:
        """The rows of each block at a level of the module tree, by the name of the block; groups are not included."""
        blocks: dict[str, list[int]] = {}
        for name, row in zip(column.names, column.rows.tolist(), strict=True):
            if row not in self.rows.members:
                blocks.setdefault(block_of(name, level), []).append(row)
        return blocks

    def _roll_up(
        self, columns: list[StatColumn], levels: Mapping[tuple[str, str], int], pinned: frozenset[str]
    ) -> list[Indices]:
        """Merge rows along the module tree, except pinned rows and groups; returns the unions of rows."""
        index = self.rows
        unions: dict[tuple[int, ...], int] = {}

        def union_of(rows: list[int]) -> int:
            return rows[0] if len(rows) == 1 else unions.setdefault(tuple(rows), len(index) + len(unions))

        for number, column in enumerate(columns):
            level = levels.get((column.tensor, column.stat))
            merges = level is not None and (column.stat in STATISTICS or column.stat == "ratio")
            in_full = level is not None and not merges
            unmerged = [
                i
                for i, (name, row) in enumerate(zip(column.names, column.rows.tolist(), strict=True))
                if in_full or name in pinned or row in index.members
            ]
            if unmerged:
                tags = [f"{column.tensor}_{column.stat}/{column.names[i]}" for i in unmerged]
                self._unmerged.append((number, np.array(unmerged, dtype=np.intp), tags))
            if level is None or not merges:
                continue
            for name, rows in self._blocks(column, level).items():
                row = param_row = union_of(rows)
                if column.stat == "ratio":
                    param_row = union_of([index.param_row_of.get(member, member) for member in rows])
                self._merged.append(_Merged(f"{column.tensor}_{column.stat}/{name}", column.stat, row, param_row))
        return [np.array(rows, dtype=np.intp) for rows in unions]
