"""Computes a statistic of a node of the tree: of one row, or of all rows of a folded node together.

The statistic of several rows is exact if the event file holds the columns from which it can be merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.dashboard.source import RunSource
from lightning_hooks.dashboard.tree import Node
from lightning_hooks.stats.columns import by_starts
from lightning_hooks.stats.stored import StoredRows

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Values(NamedTuple):
    """Values of nodes at some points of a table.

    Args:
        values: float64 [points, nodes].
        measured: whether each value was measured, bool [points, nodes].
        from_zero: which values are updates of a parameter that was exactly 0, which have no ratio, bool [points, nodes]; None
            for other statistics.
    """

    values: Array
    measured: Mask
    from_zero: Mask | None = None

    def at(self, points: NDArray[np.intp]) -> Values:
        """The values of some points, which may repeat."""
        from_zero = None if self.from_zero is None else self.from_zero[points]
        return Values(self.values[points], self.measured[points], from_zero)


def merges_exactly(source: RunSource, tensor: str, stat: str) -> bool:
    """Whether a folded node shows the statistic of all its rows together; otherwise it shows the largest value of its rows."""
    return Reader(source, tensor, stat, []).is_exact


class Reader:
    """Reads a statistic of nodes: the values of single rows, and the merged values of nodes with rows below them."""

    def __init__(self, source: RunSource, tensor: str, stat: str, nodes: Sequence[Node]) -> None:
        self._source, self._tensor, self._stat = source, tensor, stat
        self._single = np.array([i for i, node in enumerate(nodes) if node.row is not None], dtype=np.intp)
        self._rows = np.array([node.row for node in nodes if node.row is not None], dtype=np.intp)
        self._unions = np.array([i for i, node in enumerate(nodes) if node.row is None], dtype=np.intp)
        leaves = [node.leaves for node in nodes if node.row is None]
        self._leaves = np.array([row for rows in leaves for row in rows], dtype=np.intp)
        self._reduction = by_starts(np.cumsum([0, *map(len, leaves)])[:-1], len(self._leaves))
        self._nodes = len(nodes)
        self.is_exact = all(each.merges("norm" if stat == "ratio" else stat) for each in self._stored(0, 0))

    def _stored(self, first: int, last: int) -> list[StoredRows]:
        return [each for each in self._source.stored(self._tensor, self._stat, first, last) if each is not None]

    def read(self, first: int, last: int) -> Values:
        """The values of the points `first` to `last` of the table."""
        stored = self._stored(first, last)
        rows = _computed(stored, self._stat)
        row_measured = _measured(stored, rows)
        values = np.empty((rows.shape[1], self._nodes))
        measured = np.empty(values.shape, dtype=np.bool_)
        from_zero = np.zeros(values.shape, dtype=np.bool_) if len(stored) > 1 else None
        values[:, self._single], measured[:, self._single] = rows[self._rows].T, row_measured[self._rows].T
        if from_zero is not None:
            from_zero[:, self._single] = _from_zero(stored, rows)[self._rows].T
        if len(self._unions):
            merged = [each.taken(self._leaves).united(self._reduction) for each in stored]
            unions = _computed(merged, self._stat)
            values[:, self._unions] = unions.T
            measured[:, self._unions] = _measured(merged, unions).T
            if from_zero is not None:
                from_zero[:, self._unions] = _from_zero(merged, unions).T
        return Values(values, measured, from_zero)

    def at(self, points: NDArray[np.intp]) -> Values:
        """As `read`, for ascending points that need not be contiguous."""
        low, high = int(points[0]), int(points[-1]) + 1
        # If at least a quarter of the range is needed, read the whole range at once: one read is faster than many.
        if high - low <= 4 * len(points):
            values, measured, _ = self.read(low, high)
            return Values(values[points - low], measured[points - low])
        single = [self.read(point, point + 1) for point in points.tolist()]
        return Values(np.concatenate([each.values for each in single]), np.concatenate([each.measured for each in single]))


def _computed(stored: Sequence[StoredRows], stat: str) -> Array:
    """The statistic, float64 [rows, steps]."""
    return stored[0].compute(stat) if len(stored) == 1 else stored[0].ratio_to(stored[1])


def _from_zero(stored: Sequence[StoredRows], ratios: Array) -> Mask:
    """Which ratios are infinite because the parameter was exactly 0, not because the update is infinite, bool [rows, steps]."""
    infinite = np.isinf(ratios)
    if not infinite.any():
        return infinite
    update, param = (each.compute("norm") for each in stored)
    was_zero: Mask = infinite & (param == 0) & np.isfinite(update)
    return was_zero


def _measured(stored: Sequence[StoredRows], values: Array) -> NDArray[np.bool_]:
    """Which values were measured. NaN can be a measured value, or mean "not measured": the count tells which."""
    measured = ~np.isnan(values)
    if measured.all():
        return measured
    counted = np.logical_and.reduce([each.numbers("count") > 0 for each in stored if "count" in each.names] or [measured])
    either: NDArray[np.bool_] = measured | counted
    return either
