"""A rectangle of a heat map. A cell has the least and the greatest value and counts of NaN and Inf: no extreme is hidden."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.dashboard.merging import Reader
from lightning_hooks.dashboard.source import RunSource
from lightning_hooks.dashboard.tree import Node

Array = NDArray[np.float64]
Floats = NDArray[np.float32]

_WIDEST: Final = 1 << 53
"""Steps of a cell: beyond, the page's numbers are not exact."""
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
    return min(max(int(np.median(np.diff(steps))), 1), _WIDEST) if len(steps) > 1 else 1


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


def tile(source: RunSource, tensor: str, stat: str, nodes: Sequence[Node], width: int, first: int, last: int) -> Tile:
    """The cells from `first` to before `last` of some nodes of the tree of a table.

    Args:
        nodes: one with rows below it shows the statistic of their union.
        width: of a cell in steps; cell i holds the steps from i times its width on.
    """
    steps, reader = source.steps(tensor, stat), Reader(source, tensor, stat, nodes)
    return _cells(steps, reader.read, len(nodes), width, first, last)


def difference(
    source: RunSource,
    other: RunSource,
    tensor: str,
    stat: str,
    pairs: Sequence[tuple[Node, Node | None]],
    width: int,
    first: int,
    last: int,
) -> Tile:
    """As `tile`, of one run minus another: of the steps and nodes that both have; elsewhere nothing was measured.

    Args:
        pairs: nodes of the tree of the first run, each with that of the other run; None where this has none.
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

    return _cells(common, read, len(pairs), width, first, last)


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
