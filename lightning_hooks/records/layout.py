"""What a step writes: laid out once for a set of due schedules, then filled at each step by vector operations."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_hooks.plan.row_index import RowIndex, columns_of
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.entry import LogEntry
from lightning_hooks.records.histograms import Histograms
from lightning_hooks.records.levels import Levels
from lightning_hooks.records.merged_scalars import MergedScalars
from lightning_hooks.records.saved_window import to_text
from lightning_hooks.records.step_view import STAGE_PREFIX, StepView
from lightning_hooks.records.table_layout import SeriesHeader, TableLayout
from lightning_hooks.stats.row_statistics import RowStatistics, StatisticRequests
from lightning_hooks.stats.statistics import STATISTICS

_UNMERGED = Levels()


class EntryLayout:
    """The columns that a set of due schedules requests, and the blocks of rows whose scalars are written instead of rows.

    The values of an entry are computed together, in this order: the statistics, the numbers of elements, the merged scalars.

    Args:
        rows: the row index of the views.
        due: the schedules that are due.
        stage: the stage of the views.
        prefix: the monitor's prefix of tags.
        levels: the levels of the module tree at which rows are merged; default: no rows are merged.
        merges: whether the views merge several steps.

    Attributes:
        headers: the series of statistics.
        histogram_tags: the tags of the histograms that TensorBoard draws, with prefix.
        row_tags: such tags of the histograms of all rows, which the table has; the same object if no rows are merged.
    """

    def __init__(
        self,
        rows: RowIndex,
        due: Due,
        stage: str = "train",
        prefix: str = "",
        levels: Levels = _UNMERGED,
        *,
        merges: bool = False,
    ) -> None:
        self.rows, self.due = rows, due
        self.prefix = f"{prefix}{STAGE_PREFIX[stage]}"
        counts, stat_columns = columns_of(rows, due)
        columns = [column for column in stat_columns if column.stat != "histogram"]
        histograms = [column for column in stat_columns if column.stat == "histogram"]
        requests = StatisticRequests(len(rows))
        self.headers = tuple(SeriesHeader(*each[:3], requests.add(each.stat, each.rows)) for each in (*columns, *counts))
        self._series = requests.since(0)
        # `RowStatistics` makes room for the statistics that do not follow from the moments of a row: `fill` computes them.
        with_spans = [(column, header.span) for column, header in zip(columns, self.headers, strict=False)]
        self._others = [(column, span) for column, span in with_spans if column.stat not in STATISTICS]
        self._merged: MergedScalars | None = None
        if levels.scalars is not None:
            self._merged = MergedScalars(rows, levels.scalars, levels.pinned, requests, with_spans)
        self._statistics = RowStatistics(requests)
        self._histograms = Histograms.of(rows, histograms, levels, self.prefix)
        self.histogram_tags = self._histograms.tags
        is_merged = levels.histograms is not None
        self._row_histograms = Histograms.of(rows, histograms, _UNMERGED, self.prefix) if is_merged else self._histograms
        self.row_tags = self._row_histograms.tags
        self._table = TableLayout(rows, counts, columns, merges=merges)

    def fill(self, view: StepView, *, histograms: Sequence[str] | None = None, rows: Sequence[str] | None = None) -> LogEntry:
        """The entry of a step at which these schedules were due.

        Args:
            view: the view of the step.
            histograms: the tags of the histograms that TensorBoard draws; default all.
            rows: the tags of the histograms in the table; default all.
        """
        step = self._statistics(view.moments)
        are_measured = step.are_measured.copy() if self._others else step.are_measured
        for column, span in self._others:
            values = step.values[span] = view.values(column.stat, column.rows)
            are_measured[span] = view._are_measured(column.stat, column.rows, values)
        merged = None if self._merged is None else self._merged.fill(step, are_measured)
        histogram_tags, histogram_counts = self._histograms.fill(
            view, step, self.histogram_tags if histograms is None else histograms
        )
        rows = self.row_tags if rows is None else rows
        row_tags, row_counts = histogram_tags, histogram_counts
        if rows is not histograms or self.row_tags is not self.histogram_tags:
            row_tags, row_counts = self._row_histograms.fill(view, step, rows)
        table, table_values = self._table.fill(view)
        return LogEntry(
            step=view.step,
            prefix=self.prefix,
            headers=self.headers,
            values=step.values[self._series],
            measured=are_measured[self._series],
            summaries=view.summaries,
            merged=merged,
            histogram_tags=histogram_tags,
            histogram_counts=histogram_counts,
            row_histograms=self._row_histograms.by_tensor(row_tags, row_counts),
            wall_time=view.wall_time,
            table=table,
            table_values=table_values,
            window="" if view.window is None else to_text(view.window),
        )
