"""The statistic of a node: of one row, or of several together, exactly where the tables hold what that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.dashboard.source import RunSource
from lightning_hooks.dashboard.tree import Node

Array = NDArray[np.float64]
Floats = NDArray[np.float32]
Read = Callable[[str], Array]
"""A statistic of the rows, float64 [rows, steps]."""

NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "count": (),
    "norm": (),
    "nonfinite": (),
    "min": (),
    "max": (),
    "abs_max": (),
    "rms": ("count",),
    "mean": ("count",),
    "abs_mean": ("count",),
    "zero_fraction": ("count",),
    "underflow_fraction": ("count",),
    "std": ("count", "mean"),
    "ratio": ("norm", "norm of param"),
}
"""What the union of rows takes besides the statistic itself. Statistics that are not here cannot be merged."""


def is_exact(stat: str, has: Callable[[str], bool]) -> bool:
    """Whether the statistic of a union of rows follows from the tables; otherwise the largest of them is shown."""
    return stat in NEEDS and all(map(has, NEEDS[stat]))


def merged(stat: str, values: Array, measured: NDArray[np.bool_], starts: Sequence[int], read: Read | None) -> Array:
    """A statistic of unions of rows.

    Args:
        stat: its name.
        values: of each row, float64 [rows, steps], those of a union side by side.
        measured: bool [rows, steps]; rows that were not measured do not count.
        starts: the first row of each union.
        read: the other statistics that `NEEDS` names; None for the largest row, where they are missing.

    Returns:
        float64 [unions, steps]; NaN where nothing was measured.

    Example:
        >>> merged("norm", np.array([[3.0], [4.0], [np.nan]]), np.array([[True], [True], [False]]), [0, 2], None)
        array([[ 5.],
               [nan]])
    """
    sizes = np.diff([*starts, len(values)])
    is_all = bool(measured.all())

    def known(each: Array, otherwise: float) -> Array:
        return each if is_all else np.where(measured, each, otherwise)

    def total(each: Array) -> Array:
        out: Array = np.add.reduceat(known(each, 0.0), starts, axis=0)
        return out

    def result() -> Array:
        if stat in ("count", "nonfinite"):
            return total(values)
        if stat == "norm":
            return np.sqrt(total(np.square(values)))
        if stat == "min":
            least: Array = np.minimum.reduceat(known(values, np.inf), starts, axis=0)
            return least
        if read is None or stat in ("max", "abs_max"):
            greatest: Array = np.maximum.reduceat(known(values, -np.inf), starts, axis=0)
            return greatest
        if stat == "ratio":
            above, below = np.sqrt(total(np.square(read("norm")))), np.sqrt(total(np.square(read("norm of param"))))
            return np.where((above == 0) & (below == 0), 0.0, above / below)
        count = read("count")
        n = total(count)
        if stat == "rms":
            return np.sqrt(total(count * np.square(values)) / n)
        if stat == "std":
            means = read("mean")
            squares = np.square(means - np.repeat(total(count * means) / n, sizes, axis=0))
            squares += np.square(values)
            squares *= count
            return np.sqrt(total(squares) / n)
        return total(count * values) / n

    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.where(np.logical_or.reduceat(measured, starts, axis=0), result(), np.nan)


def merges_exactly(source: RunSource, tensor: str, stat: str) -> bool:
    """Whether a node with rows below it shows the statistic of their union; otherwise it shows the largest of them."""
    return Reader(source, tensor, stat, []).is_exact


class Reader:
    """Reads a statistic of nodes: rows are taken, unions are merged."""

    def __init__(self, source: RunSource, tensor: str, stat: str, nodes: Sequence[Node]) -> None:
        self._source, self._tensor, self._stat = source, tensor, stat
        self._tables = {*source.tables()}
        self._single = np.array([i for i, node in enumerate(nodes) if node.row is not None], dtype=np.intp)
        self._rows = np.array([node.row for node in nodes if node.row is not None], dtype=np.intp)
        self._unions = np.array([i for i, node in enumerate(nodes) if node.row is None], dtype=np.intp)
        leaves = [node.leaves for node in nodes if node.row is None]
        self._leaves = np.array([row for rows in leaves for row in rows], dtype=np.intp)
        self._starts = np.cumsum([0, *map(len, leaves)])[:-1]
        self._nodes = len(nodes)
        self._others: dict[str, Callable[[int, int], Floats]] = {}
        self.is_exact = is_exact(stat, self._has)

    def _has(self, needed: str) -> bool:
        """Whether another statistic is there for every row, and prepare reading it."""
        stat, _, of = needed.partition(" of ")
        names = self._source.rows(self._tensor, self._stat)
        tensor = _sibling(self._tensor, of) if of else self._tensor
        if (tensor, stat) not in self._tables:
            return False
        position = {name: i for i, name in enumerate(self._source.rows(tensor, stat))}
        if not all(name in position for name in names):
            return False
        columns = np.array([position[name] for name in names], dtype=np.intp)
        self._others[needed] = lambda first, last: self._aligned(tensor, stat, columns, first, last)
        return True

    def _aligned(self, tensor: str, stat: str, columns: NDArray[np.intp], first: int, last: int) -> Floats:
        """Another table at the same steps."""
        mine, theirs = self._source.steps(self._tensor, self._stat)[first:last], self._source.steps(tensor, stat)
        places = np.searchsorted(theirs, mine)
        if len(mine) and np.array_equal(theirs[places[0] : places[0] + len(mine)], mine):  # as in most runs
            rows = self._source.read(tensor, stat, int(places[0]), int(places[0]) + len(mine))
            return rows if np.array_equal(columns, np.arange(rows.shape[1])) else rows[:, columns]
        out = np.full((len(mine), len(columns)), np.nan, dtype=np.float32)
        if len(theirs):
            found = theirs[np.minimum(places, len(theirs) - 1)] == mine
            if found.any():
                low, high = int(places[found].min()), int(places[found].max()) + 1
                out[found] = self._source.read(tensor, stat, low, high)[places[found] - low][:, columns]
        return out

    def read(self, first: int, last: int) -> tuple[Array, NDArray[np.bool_]]:
        """Values and whether they were measured, of points [steps, nodes]."""
        rows = self._source.read(self._tensor, self._stat, first, last)
        measured = self._measured(rows, first, last)
        values = np.empty((len(rows), self._nodes))
        there = np.empty(values.shape, dtype=np.bool_)
        values[:, self._single], there[:, self._single] = rows[:, self._rows], measured[:, self._rows]
        if len(self._unions):
            # One row after the other in memory: sums over rows are then sums of whole vectors.
            leaves, known = rows.T[self._leaves].astype(np.float64), measured.T[self._leaves]

            def read(needed: str) -> Array:
                return self._others[needed](first, last).T[self._leaves].astype(np.float64)

            others = read if self.is_exact else None
            values[:, self._unions] = merged(self._stat, leaves, known, self._starts.tolist(), others).T
            there[:, self._unions] = np.logical_or.reduceat(known, self._starts, axis=0).T
        return values, there

    def at(self, points: NDArray[np.intp]) -> tuple[Array, NDArray[np.bool_]]:
        """The same of ascending points that need not be neighbours."""
        low, high = int(points[0]), int(points[-1]) + 1
        if high - low <= 4 * len(points):  # what lies between takes little
            values, measured = self.read(low, high)
            return values[points - low], measured[points - low]
        found = [self.read(point, point + 1) for point in points.tolist()]
        return np.concatenate([values for values, _ in found]), np.concatenate([measured for _, measured in found])

    def _measured(self, rows: Floats, first: int, last: int) -> NDArray[np.bool_]:
        """A row that was not measured holds NaN; whether a NaN was measured is said by the count."""
        measured = ~np.isnan(rows)
        if not measured.all():
            if "count" not in self._others and not self._has("count"):
                return np.ones_like(measured) if self._stat != "count" else measured
            counts = self._others["count"](first, last)
            measured |= counts > 0
        return measured


def _sibling(tensor: str, kind: str) -> str:
    """Another tensor of the same parameters: with the same prefix."""
    return f"{tensor.removesuffix('update')}{kind}"
