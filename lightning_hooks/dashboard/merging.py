"""The statistic of a node: of one row, or of several together, exactly where the event file holds what that takes."""

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
    """Whether a node with rows below it shows the statistic of their union; otherwise it shows the largest of them."""
    return Reader(source, tensor, stat, []).is_exact


class Reader:
    """Reads a statistic of nodes: rows are taken, unions are merged."""

    def __init__(self, source: RunSource, tensor: str, stat: str, nodes: Sequence[Node]) -> None:
        self._source, self._tensor, self._stat = source, tensor, stat
        self._single = np.array([i for i, node in enumerate(nodes) if node.row is not None], dtype=np.intp)
        self._rows = np.array([node.row for node in nodes if node.row is not None], dtype=np.intp)
        self._unions = np.array([i for i, node in enumerate(nodes) if node.row is None], dtype=np.intp)
        leaves = [node.leaves for node in nodes if node.row is None]
        self._leaves = np.array([row for rows in leaves for row in rows], dtype=np.intp)
        self._how = by_starts(np.cumsum([0, *map(len, leaves)])[:-1], len(self._leaves))
        self._nodes = len(nodes)
        self.is_exact = all(each.merges("norm" if stat == "ratio" else stat) for each in self._stored(0, 0))

    def _stored(self, first: int, last: int) -> list[StoredRows]:
        return [each for each in self._source.stored(self._tensor, self._stat, first, last) if each is not None]

    def read(self, first: int, last: int) -> tuple[Array, NDArray[np.bool_]]:
        """Values and whether they were measured, of points [steps, nodes]."""
        stored = self._stored(first, last)
        rows = _computed(stored, self._stat)
        measured = _measured(stored, rows)
        values = np.empty((rows.shape[1], self._nodes))
        there = np.empty(values.shape, dtype=np.bool_)
        values[:, self._single], there[:, self._single] = rows[self._rows].T, measured[self._rows].T
        if len(self._unions):
            parts = [each.taken(self._leaves).united(self._how) for each in stored]
            united = _computed(parts, self._stat)
            values[:, self._unions] = united.T
            there[:, self._unions] = _measured(parts, united).T
        return values, there

    def at(self, points: NDArray[np.intp]) -> tuple[Array, NDArray[np.bool_]]:
        """The same of ascending points that need not be neighbours."""
        low, high = int(points[0]), int(points[-1]) + 1
        if high - low <= 4 * len(points):  # what lies between takes little
            values, measured = self.read(low, high)
            return values[points - low], measured[points - low]
        found = [self.read(point, point + 1) for point in points.tolist()]
        return np.concatenate([values for values, _ in found]), np.concatenate([measured for _, measured in found])


def _computed(stored: Sequence[StoredRows], stat: str) -> Array:
    """The statistic, float64 [rows, steps]."""
    return stored[0].compute(stat) if len(stored) == 1 else stored[0].ratio_to(stored[1])


def _measured(stored: Sequence[StoredRows], values: Array) -> NDArray[np.bool_]:
    """Which values were measured: NaN may be a value, or stand for none, which the count tells."""
    measured = ~np.isnan(values)
    if measured.all():
        return measured
    counted = np.logical_and.reduce([each.numbers("count") > 0 for each in stored if "count" in each.names] or [measured])
    found: NDArray[np.bool_] = measured | counted
    return found
