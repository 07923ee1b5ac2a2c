"""A rectangle of a heat map. A cell has the least and the greatest value and counts of NaN and Inf: no extreme is hidden."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.dashboard.merging import is_exact, merged
from lightning_hooks.dashboard.source import RunSource
from lightning_hooks.dashboard.tree import Node

Array = NDArray[np.float64]
Floats = NDArray[np.float32]

_CHUNK: Final = 64
"""Steps that are in memory at a time: of 1,000 rows half a megabyte, which stays in the cache of a core."""


class Tile(NamedTuple):
    """Cells of nodes over steps.

    Args:
        least: of the finite values, float32 [nodes, cells]; NaN where there is none.
        greatest: likewise.
        nan: how many values are NaN, uint16 [nodes, cells], at most 65,535.
        infinite: how many are infinite, likewise. A cell without any value was not measured.
    """

    least: Floats
    greatest: Floats
    nan: NDArray[np.uint16]
    infinite: NDArray[np.uint16]

    def bytes(self) -> bytes:
        """The four arrays one after the other, little-endian."""
        return b"".join(np.ascontiguousarray(each, dtype=each.dtype.newbyteorder("<")).tobytes() for each in self)


def unit_of(steps: NDArray[np.int64]) -> int:
    """The steps of a cell at level 0 of a table with these ascending steps: from one to the next, for most of them."""
    return max(int(np.median(np.diff(steps))), 1) if len(steps) > 1 else 1


def progressions(steps: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Ascending steps as (first, last, distance), one where all are evenly spaced.

    Example:
        >>> progressions(np.array([9, 19, 29, 30, 31]))
        [(9, 29, 10), (30, 31, 1)]
    """
    distances = np.diff(steps)
    # Where another distance begins, and the end; what is between two progressions belongs to none.
    ends = [*(np.flatnonzero(np.diff(distances)) + 1).tolist(), len(steps) - 1, len(steps) - 1]
    found: list[tuple[int, int, int]] = []
    at = 0
    for end in ends:
        if at <= end:
            found.append((int(steps[at]), int(steps[end]), int(distances[at]) if end > at else 1))
            at = end + 1
    return found


def tile(
    source: RunSource, tensor: str, stat: str, nodes: Sequence[Node], unit: int, level: int, first: int, last: int
) -> Tile:
    """The cells `first` to `last` of some nodes.

    Args:
        source: the run.
        tensor: of the table.
        stat: of the table.
        nodes: of its tree; a node with rows below it shows the statistic of their union.
        unit: the steps of a cell at level 0; cell i holds the steps from i times its width on.
        level: each level doubles the width.
        first: cell.
        last: the cell after the last.
    """
    steps, reader = source.steps(tensor, stat), Reader(source, tensor, stat, nodes)
    return _cells(steps, reader.read, len(nodes), unit << level, first, last)


def difference(
    source: RunSource,
    other: RunSource,
    tensor: str,
    stat: str,
    pairs: Sequence[tuple[Node, Node | None]],
    unit: int,
    level: int,
    first: int,
    last: int,
) -> Tile:
    """As `tile`, of one run minus another: of the steps and nodes that both have; elsewhere nothing was measured.

    Args:
        source: the run.
        other: what is subtracted.
        tensor: of the table of both.
        stat: of the table of both.
        pairs: nodes of the tree of the first run, each with that of the other run; None where this has none.
        unit: as `tile` says.
        level: likewise.
        first: cell.
        last: the cell after the last.
    """
    common, *places = np.intersect1d(
        source.steps(tensor, stat), other.steps(tensor, stat), assume_unique=True, return_indices=True
    )
    shared = [(i, node, twin) for i, (node, twin) in enumerate(pairs) if twin is not None]
    columns = np.array([i for i, *_ in shared], dtype=np.intp)
    readers = (
        Reader(source, tensor, stat, [node for _, node, _ in shared]),
        Reader(other, tensor, stat, [twin for *_, twin in shared]),
    )

    def read(begin: int, end: int) -> tuple[Array, NDArray[np.bool_]]:
        (x, x_measured), (y, y_measured) = (
            reader.at(points[begin:end]) for reader, points in zip(readers, places, strict=True)
        )
        values = np.full((end - begin, len(pairs)), np.nan)
        measured = np.zeros(values.shape, dtype=np.bool_)
        measured[:, columns] = x_measured & y_measured
        with np.errstate(invalid="ignore"):
            # Infinite minus infinite is infinite: one of the two is, as is counted.
            found = np.where(np.isinf(x) & np.isinf(y), np.inf, x - y)
        values[:, columns] = np.where(measured[:, columns], found, np.nan)
        return values, measured

    return _cells(common, read, len(pairs), unit << level, first, last)


def _cells(
    steps: NDArray[np.int64],
    read: Callable[[int, int], tuple[Array, NDArray[np.bool_]]],
    nodes: int,
    width: int,
    first: int,
    last: int,
) -> Tile:
    """The cells of what `read` returns of a range of these steps: values and whether they were measured, [steps, nodes]."""
    begin, end = np.searchsorted(steps, [first * width, last * width]).tolist()
    shape = nodes, last - first
    out = Tile(
        np.full(shape, np.inf, np.float32),
        np.full(shape, -np.inf, np.float32),
        np.zeros(shape, np.uint16),
        np.zeros(shape, np.uint16),
    )
    for at in range(begin, end, _CHUNK):
        stop = min(at + _CHUNK, end)
        values, measured = read(at, stop)
        _reduce(values, measured, steps[at:stop] // width - first, out)
    empty = out.least > out.greatest
    out.least[empty] = out.greatest[empty] = np.nan
    return out


def _reduce(values: Array, measured: NDArray[np.bool_], cells: NDArray[np.int64], out: Tile) -> None:
    """Put values [steps, nodes] into their cells."""
    starts = np.flatnonzero(np.diff(cells, prepend=cells[0] - 1))
    into = cells[starts]
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    finite = np.isfinite(values)
    is_all = bool(finite.all())
    low = values if is_all else np.where(finite, values, np.float32(np.inf))
    high = values if is_all else np.where(finite, values, np.float32(-np.inf))
    out.least[:, into] = np.minimum(out.least[:, into], np.minimum.reduceat(low, starts, axis=0).T)
    out.greatest[:, into] = np.maximum(out.greatest[:, into], np.maximum.reduceat(high, starts, axis=0).T)
    if is_all:
        return
    for counts, is_it in ((out.nan, np.isnan(values) & measured), (out.infinite, np.isinf(values))):
        more = np.add.reduceat(is_it.astype(np.uint32), starts, axis=0).T + counts[:, into]
        counts[:, into] = np.minimum(more, 65535)


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
