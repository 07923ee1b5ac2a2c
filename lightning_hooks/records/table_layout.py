"""Layout of the table in an event file: the states of accumulators, from which every statistic can be computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.plan.row_index import Indices, RowIndex, StatColumn, joined
from lightning_hooks.records.step_view import StepView
from lightning_hooks.records.window import unmerged_columns
from lightning_hooks.stats.accumulators import MOMENTS, Accumulator
from lightning_hooks.stats.spans import Spans
from lightning_hooks.stats.stored import GREATEST, LEAST, MOMENT_NAMES, STEPS, stored_moments

Array = NDArray[np.float64]


class SeriesHeader(NamedTuple):
    """The tensor, statistic and rows of a series, and the position of its values in the values of all series.

    Args:
        tensor: `grad`, `output[0]` …
        stat: `norm`, `p99`, or `count`.
        names: the dotted names of the rows; the same object at every step with the same rows.
        span: the positions of the values.
    """

    tensor: str
    stat: str
    names: tuple[str, ...]
    span: slice


class _OtherSeries(NamedTuple):
    """The columns of an accumulator other than the moments, or one statistic that is stored as a number.

    Args:
        accumulator: the accumulator; None for a statistic.
        stat: the statistic; empty for an accumulator.
        rows: the indices of the rows.
        span: the positions of the numbers.
    """

    accumulator: Accumulator | None
    stat: str
    rows: Indices
    span: slice


class TableLayout:
    """The series in the table for a set of due schedules.

    The table has the moments of every row with a due statistic, and of the parameters that a ratio needs. The states of other
    accumulators are stored if the accumulator names columns for them (`stored`). All other statistics are stored as numbers.
    Last are the vectors of units.

    Args:
        index: the row index of the views.
        counts: for each tensor the rows that are due.
        columns: the statistics that are due.
        merges: whether the views merge several steps. The table then also has the number of steps of each row, and the extremes
            of the statistics that do not merge over steps.
    """

    def __init__(
        self, index: RowIndex, counts: Sequence[StatColumn], columns: Sequence[StatColumn], *, merges: bool = False
    ) -> None:
        headers: list[SeriesHeader] = []
        self._spans = Spans()
        # The positions of the numbers to store in the flattened moments [rows, columns], one column of a tensor after the
        # other.
        positions: list[Indices] = []
        for tensor, names, rows in _rows_with_moments(index, counts, columns):
            for column in stored_moments(magnitudes=index.magnitudes):
                headers.append(SeriesHeader(tensor, MOMENT_NAMES[column], names, self._spans.add(len(names))))
                positions.append(rows * MOMENTS.width + column)
        self._positions = joined(positions)
        self._moments = self._spans.since(0)
        self._steps: list[tuple[Indices, slice]] = []
        if merges:
            for tensor, names, rows in _rows_with_moments(index, counts, columns):
                headers.append(SeriesHeader(tensor, STEPS, names, self._spans.add(len(names))))
                self._steps.append((rows, headers[-1].span))
        self._others: list[_OtherSeries] = []
        for each in columns:
            if each.stat != "ratio" and not MOMENTS.serves(each.stat):
                headers += self._add_other(index, each, columns)
        for each in unmerged_columns(index, columns) if merges else ():
            for end in (LEAST, GREATEST):
                extreme = SeriesHeader(each.tensor, f"{each.stat}{end}", each.names, self._spans.add(len(each.rows)))
                headers.append(extreme)
                self._others.append(_OtherSeries(None, extreme.stat, each.rows, extreme.span))
        self._headers = tuple(headers)
        self._size = self._spans.size
        self._vectors = UnitVectors(index, self._size)

    def fill(self, view: StepView) -> tuple[tuple[SeriesHeader, ...], Array]:
        """The headers of the series of a step, and the numbers of all series, concatenated."""
        numbers = np.empty(self._size)
        numbers[self._moments] = MOMENTS.encode(view.moments).take(self._positions)
        if view.window is not None:
            for rows, span in self._steps:
                numbers[span] = view.window.measured[rows]
        for accumulator, stat, rows, span in self._others:
            if accumulator is None:
                numbers[span] = view.values(stat, rows)
            else:
                numbers[span] = accumulator.encode(view.state(accumulator.name, rows)).T.ravel()
        if not view.vectors:
            return self._headers, numbers
        headers, of_units = self._vectors.fill(view)
        return (*self._headers, *headers), np.concatenate([numbers, of_units])

    def _add_other(self, index: RowIndex, column: StatColumn, columns: Sequence[StatColumn]) -> list[SeriesHeader]:
        """Add the stored columns of the accumulator that computes a statistic, or else the statistic as a number."""
        accumulator = next((kept.accumulator for kept in index.kept.values() if kept.accumulator.serves(column.stat)), None)
        if accumulator is None or not accumulator.stored:
            header = SeriesHeader(*column[:3], self._spans.add(len(column.rows)))
            self._others.append(_OtherSeries(None, column.stat, column.rows, header.span))
            return [header]
        served = [each for each in columns if each.tensor == column.tensor and accumulator.serves(each.stat)]
        # Several statistics of a tensor can follow from one accumulator. Add its columns at the first of these statistics.
        if served[0] is not column:
            return []
        names, rows = _union(index, served)
        start = self._spans.size
        headers = [SeriesHeader(column.tensor, name, names, self._spans.add(len(names))) for name in accumulator.stored]
        self._others.append(_OtherSeries(accumulator, "", rows, self._spans.since(start)))
        return headers


class UnitVectors:
    """The series of units: each row with `Units(vectors=True)` has a table of its own, whose rows are the units.

    Args:
        index: the row index of the views.
        start: the position of the first number.
    """

    def __init__(self, index: RowIndex, start: int) -> None:
        self._index, self._start = index, start
        self._headers: dict[tuple[tuple[int, str, int], ...], tuple[SeriesHeader, ...]] = {}

    def fill(self, view: StepView) -> tuple[tuple[SeriesHeader, ...], Array]:
        """The headers of the series of a step, and the numbers of all series, concatenated."""
        key = tuple((row, name, len(values)) for (row, name), values in view.vectors.items())
        if key not in self._headers:
            spans = Spans(self._start)
            self._headers[key] = tuple(
                SeriesHeader(units_table(self._index, row), name, tuple(map(str, range(size))), spans.add(size))
                for row, name, size in key
            )
        return self._headers[key], np.concatenate([*view.vectors.values()])


def units_table(index: RowIndex, row: int) -> str:
    """The name of the table of the units of a row."""
    return f"units of {index.tensors[row]}/{index.names[row]}"


def _rows_with_moments(
    index: RowIndex, counts: Sequence[StatColumn], columns: Sequence[StatColumn]
) -> Iterator[tuple[str, tuple[str, ...], Indices]]:
    """For each tensor: the tensor, and the names and indices of the rows whose moments are stored."""
    by_tensor = {column.tensor: [column] for column in counts}
    for column in columns:
        if column.stat == "ratio":
            param_rows = np.array([index.param_row_of[row] for row in column.rows.tolist()], dtype=np.intp)
            tensor = index.tensors[param_rows[0]]
            by_tensor.setdefault(tensor, []).append(StatColumn(tensor, "count", (), param_rows))
    for tensor, parts in by_tensor.items():
        yield tensor, *_union(index, parts)


def _union(index: RowIndex, parts: Sequence[StatColumn]) -> tuple[tuple[str, ...], Indices]:
    """The names and indices of the rows of several columns, without duplicates."""
    rows = np.unique(joined([part.rows for part in parts]))
    if len(rows) == len(parts[0].rows) and parts[0].names:
        return parts[0].names, parts[0].rows
    return tuple(map(index.names.__getitem__, rows.tolist())), rows
