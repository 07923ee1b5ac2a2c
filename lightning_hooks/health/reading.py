"""Reading step views: the statistics of many views at once, as arrays [views, rows]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.health.window import Array, Key
from lightning_hooks.plan.row_index import KeptRows, RowIndex
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.step_view import StepView
from lightning_hooks.stats.accumulators import MOMENTS
from lightning_hooks.stats.row_states import RowStates
from lightning_hooks.stats.statistics import MAGNITUDE_STATS, compute, ratio_of_rows


class Columns(NamedTuple):
    """The rows of one tensor.

    Args:
        names: the dotted names.
        rows: their indices in the row index.
    """

    names: tuple[str, ...]
    rows: NDArray[np.intp]


_Read = Callable[[Sequence[StepView], Array], Array]
"""Reads a statistic from views and their moments [views, rows of the index, 9]."""


class Reader:
    """Reads some statistics from all views with one row index.

    Args:
        index: the row index of the views.
        needs: pairs of a tensor and a statistic. Pairs with an empty tensor are tags of summaries.

    Attributes:
        columns: the rows of each tensor that is needed.
        tensors: all tensors of the row index.
        held: how each statistic of a tensor is read that the views hold.

    Example:
        >>> index = RowIndex(["fc.weight"], ["grad"])
        >>> moments = np.array([[4.0, 0.5, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 0.0]])
        >>> reader = Reader(index, [("grad", "mean"), ("output", "mean")])
        >>> reader.read(("grad", "mean"), [StepView(0, rows=index, moments=moments)]), reader.read(("output", "mean"), [])
        (array([[0.5]]), None)
    """

    def __init__(self, index: RowIndex, needs: Iterable[Key]) -> None:
        self.index = index
        self.tensors = tuple(dict.fromkeys(index.tensors))
        self.columns: dict[str, Columns] = {}
        self.held: dict[Key, _Read] = {}
        self._stacked: tuple[int, Array] | None = None
        self._due: dict[tuple[str, Due], NDArray[np.bool_]] = {}
        for tensor, stat in needs:
            if tensor == "":
                continue
            columns = self._columns_of(tensor)
            read = self._find_read(stat, columns.rows) if columns.names else None
            if read is not None:
                self.held[tensor, stat] = read

    def _columns_of(self, tensor: str) -> Columns:
        if tensor not in self.columns:
            rows, names = self.index.of(tensor)
            # Skip the row of a group: it merges rows that have columns of their own.
            kept = [i for i, row in enumerate(rows.tolist()) if row not in self.index.members]
            self.columns[tensor] = Columns(tuple(names[i] for i in kept), rows[kept])
        return self.columns[tensor]

    def read(self, key: Key, views: Sequence[StepView]) -> Array | None:
        """A statistic of the views, float64 [views, rows]; NaN where a row was not measured. None if no view holds it."""
        if key[0] == "":
            numbers = np.array([view.summaries.get(key[1], np.nan) for view in views], dtype=np.float64)
            return None if np.isnan(numbers).all() else numbers[:, None]
        read = self.held.get(key)
        return None if read is None else read(views, self._moments(views))

    def are_due(self, tensor: str, due: Due) -> NDArray[np.bool_]:
        """Which rows of a tensor that is needed are due when these schedules are; all rows of an index without requests."""
        key = tensor, due
        if key not in self._due:
            index = self.index
            parts = [
                index.members.get(row, (row,))
                for each in (*index.requested_rows, *index.groups)
                if any(schedule in due for schedule, _ in each.requests)
                for row in each.rows.tolist()
            ]
            rows = {row for part in parts for row in part}
            every = not index.requested_rows
            columns = self.columns[tensor].rows.tolist() if tensor in self.columns else []
            self._due[key] = np.array([every or row in rows for row in columns], dtype=np.bool_)
        return self._due[key]

    def _moments(self, views: Sequence[StepView]) -> Array:
        # Keep the moments of the views that were read last: statistics are read from the same last views one after the other.
        last = views[-1].step
        if self._stacked is None or self._stacked[0] != last or len(self._stacked[1]) < len(views):
            self._stacked = last, np.stack([view.moments for view in views])
        return self._stacked[1][-len(views) :]

    def forget_views(self) -> None:
        """Forget the moments of the views that were read last."""
        self._stacked = None

    def _find_read(self, stat: str, rows: NDArray[np.intp]) -> _Read | None:
        if MOMENTS.serves(stat):
            if stat in MAGNITUDE_STATS and not self.index.magnitudes:
                return None
            return lambda views, moments: compute(stat, moments[:, rows])
        if stat == "ratio":
            return self._find_ratio(rows)
        kept = next((each for each in self.index.kept.values() if each.accumulator.serves(stat)), None)
        if kept is None or not (kept.slots[rows] >= 0).any():
            return None
        return lambda views, moments: _of_states(stat, kept, rows, views, moments)

    def _find_ratio(self, rows: NDArray[np.intp]) -> _Read | None:
        params = self.index.param_rows[rows]
        has_param = params >= 0
        if not has_param.any():
            return None
        return lambda views, moments: np.where(has_param, ratio_of_rows(moments, rows, params), np.nan)


def _of_states(stat: str, kept: KeptRows, rows: NDArray[np.intp], views: Sequence[StepView], moments: Array) -> Array:
    """A statistic of the states of an accumulator, float64 [views, rows]."""
    values = np.full((len(views), len(rows)), np.nan)
    name = kept.accumulator.name
    slots = kept.slots[rows]
    has_slot = np.flatnonzero(slots >= 0)
    held = np.array([i for i, view in enumerate(views) if name in view.kept], dtype=np.intp)
    if len(held) < len(views):
        _fill_from_metrics(stat, name, rows, views, values)
    if not len(held) or not len(has_slot):
        return values
    states = np.stack([views[i].kept[name] for i in held.tolist()])[:, slots[has_slot]]
    measured = moments[np.ix_(held, rows[has_slot])]
    flat = {name: states.reshape(-1, states.shape[-1]), "moments": measured.reshape(-1, measured.shape[-1])}
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = kept.accumulator.compute(stat, RowStates(flat.__getitem__, views[-1].ranks)).reshape(states.shape[:2])
    values[np.ix_(held, has_slot)] = np.where(measured[..., 0] > 0, found, np.nan)
    return values


def _fill_from_metrics(stat: str, name: str, rows: NDArray[np.intp], views: Sequence[StepView], values: Array) -> None:
    """Take a statistic from views that hold its values and not the states: an event file stores those of units so."""
    column_of = {row: column for column, row in enumerate(rows.tolist())}
    for i, view in enumerate(views):
        if name not in view.kept:
            for (row, other), value in view.metrics.items():
                if other == stat and row in column_of:
                    values[i, column_of[row]] = value
