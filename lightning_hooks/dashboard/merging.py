"""Computes a statistic of a node of the tree: of one row, or of all rows of a folded node together.

The statistic of several rows is exact if the event file holds the columns from which it can be merged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.dashboard.source import RunSource
from lightning_hooks.dashboard.tree import Node
from lightning_hooks.stats.columns import by_starts
from lightning_hooks.stats.stored import StoredRows

Array = NDArray[np.float64]


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

    def read(self, first: int, last: int) -> tuple[Array, NDArray[np.bool_]]:
        """The values of the points `first` to `last` of the table, and whether they were measured.

        Returns:
            Values, float64 [points, nodes]; whether each was measured, bool [points, nodes].
        """
        stored = self._stored(first, last)
        rows = _computed(stored, self._stat)
        row_measured = _measured(stored, rows)
        values = np.empty((rows.shape[1], self._nodes))
        measured = np.empty(values.shape, dtype=np.bool_)
        values[:, self._single], measured[:, self._single] = rows[self._rows].T, row_measured[self._rows].T
        if len(self._unions):
            merged = [each.taken(self._leaves).united(self._reduction) for each in stored]
            unions = _computed(merged, self._stat)
            values[:, self._unions] = unions.T
            measured[:, self._unions] = _measured(merged, unions).T
        return values, measured

    def at(self, points: NDArray[np.intp]) -> tuple[Array, NDArray[np.bool_]]:
        """As `read`, for ascending points that need not be contiguous."""
        low, high = int(points[0]), int(points[-1]) + 1
        # If at least a quarter of the range is needed, read the whole range at once: one read is faster than many.
        if high - low <= 4 * len(points):
            values, measured = self.read(low, high)
            return values[points - low], measured[points - low]
        single = [self.read(point, point + 1) for point in points.tolist()]
        return np.concatenate([values for values, _ in single]), np.concatenate([measured for _, measured in single])


def _computed(stored: Sequence[StoredRows], stat: str) -> Array:
    """The statistic, float64 [rows, steps]."""
    return stored[0].compute(stat) if len(stored) == 1 else stored[0].ratio_to(stored[1])


def _measured(stored: Sequence[StoredRows], values: Array) -> NDArray[np.bool_]:
    """Which values were measured. NaN can be a measured value, or mean "not measured": the count tells which."""
    measured = ~np.isnan(values)
    if measured.all():
        return measured
    counted = np.logical_and.reduce([each.numbers("count") > 0 for each in stored if "count" in each.names] or [measured])
    either: NDArray[np.bool_] = measured | counted
    return either
