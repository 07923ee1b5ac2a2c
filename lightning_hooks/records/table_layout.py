"""What a step writes into the table of an event file: what accumulators keep, from which every statistic can be read again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.plan.row_index import Column, Indices, RowIndex, joined
from lightning_hooks.records.step_view import StepView
from lightning_hooks.stats.accumulators import MOMENTS, Accumulator
from lightning_hooks.stats.stored import MOMENT_NAMES, stored_moments

Array = NDArray[np.float64]


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


class _Part(NamedTuple):
    """Series that do not hold moments.

    Args:
        accumulator: whose columns they are; None where they are one statistic.
        stat: the statistic.
        rows: indices of the rows.
    """

    accumulator: Accumulator | None
    stat: str
    rows: Indices


class TableLayout:
    """The series of one set of due schedules.

    Moments are stored of every row of which a statistic is due, and of the parameters that a ratio needs. What else rows
    keep is stored where its accumulator says under which names. All other statistics are stored as numbers.

    Args:
        index: the rows of the views.
        counts: for each tensor the rows that are due.
        columns: the statistics that are due.

    Attributes:
        heads: of the series.
    """

    def __init__(self, index: RowIndex, counts: Sequence[Column], columns: Sequence[Column]) -> None:
        self._heads: list[Head] = []
        self._end = 0
        places: list[Indices] = []  # in the encoded moments, one column after the other
        for tensor, names, rows in _with_moments(index, counts, columns):
            for column in stored_moments(magnitudes=index.magnitudes):
                self._add(tensor, MOMENT_NAMES[column], names)
                places.append(rows * MOMENTS.width + column)
        self._places = joined(places)
        self._parts: list[_Part] = []
        for each in columns:
            if each.stat != "ratio" and not MOMENTS.serves(each.stat):
                self._add_other(index, each, columns)
        self.heads = tuple(self._heads)

    def fill(self, view: StepView) -> Array:
        """The numbers of all series one after the other."""
        numbers = np.empty(self._end)
        end = len(self._places)
        numbers[:end] = MOMENTS.encode(view.moments).take(self._places)
        for part in self._parts:
            if part.accumulator is None:
                found = view.values(part.stat, part.rows)
            else:
                found = part.accumulator.encode(view.state(part.accumulator.name, part.rows)).T
            numbers[end : end + found.size] = found.ravel()
            end += found.size
        return numbers

    def _add(self, tensor: str, name: str, names: tuple[str, ...]) -> None:
        self._heads.append(Head(tensor, name, names, slice(self._end, self._end + len(names))))
        self._end += len(names)

    def _add_other(self, index: RowIndex, column: Column, columns: Sequence[Column]) -> None:
        """Add a statistic, or the columns of the accumulator that it follows from, which several statistics share."""
        accumulator = next((kept.accumulator for kept in index.kept.values() if kept.accumulator.serves(column.stat)), None)
        if accumulator is None or not accumulator.stored:
            self._add(*column[:3])
            self._parts.append(_Part(None, column.stat, column.rows))
            return
        served = [each for each in columns if each.tensor == column.tensor and accumulator.serves(each.stat)]
        if served[0] is column:  # the others are served too
            names, rows = _united(index, served)
            for name in accumulator.stored:
                self._add(column.tensor, name, names)
            self._parts.append(_Part(accumulator, "", rows))


class UnitVectors:
    """The series of units: each row of which a rule asks for vectors is a table of its own, whose rows are units."""

    def __init__(self, index: RowIndex) -> None:
        self._index = index
        self._heads: dict[tuple[tuple[int, str, int], ...], tuple[Head, ...]] = {}

    def fill(self, view: StepView) -> tuple[tuple[Head, ...], Array]:
        """The series of a step, and the numbers of all of them."""
        if not view.vectors:
            return (), np.empty(0)
        key = tuple((row, name, len(values)) for (row, name), values in view.vectors.items())
        if key not in self._heads:
            ends = np.cumsum([0, *(size for *_, size in key)]).tolist()
            self._heads[key] = tuple(
                Head(units_table(self._index, row), name, tuple(map(str, range(size))), slice(start, start + size))
                for (row, name, size), start in zip(key, ends, strict=False)
            )
        return self._heads[key], np.concatenate([*view.vectors.values()])


def units_table(index: RowIndex, row: int) -> str:
    """The name of the table of a row's units."""
    return f"units of {index.tensors[row]}/{index.names[row]}"


def _with_moments(
    index: RowIndex, counts: Sequence[Column], columns: Sequence[Column]
) -> Iterator[tuple[str, tuple[str, ...], Indices]]:
    """For each tensor the names and indices of the rows whose moments are stored."""
    found = {column.tensor: [column] for column in counts}
    for column in columns:
        if column.stat == "ratio":
            below = np.array([index.param_row_of[row] for row in column.rows.tolist()], dtype=np.intp)
            tensor = index.tensors[below[0]]
            found.setdefault(tensor, []).append(Column(tensor, "count", (), below))
    for tensor, parts in found.items():
        yield tensor, *_united(index, parts)


def _united(index: RowIndex, parts: Sequence[Column]) -> tuple[tuple[str, ...], Indices]:
    """The names and indices of the rows of several columns."""
    rows = np.unique(joined([part.rows for part in parts]))
    if len(rows) == len(parts[0].rows) and parts[0].names:
        return parts[0].names, parts[0].rows
    return tuple(map(index.names.__getitem__, rows.tolist())), rows
