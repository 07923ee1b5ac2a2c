"""Computes a rectangle of cells of a heat map.

A cell holds the least and the greatest value of its steps, and how many values are NaN or infinite, so no extreme is hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.comparing.bands import log_ratio
from lightning_hooks.dashboard.merging import Reader, Values
from lightning_hooks.dashboard.source import CHUNK, RunSource, common_points
from lightning_hooks.dashboard.tree import Node

Floats = NDArray[np.float32]

_WIDEST: Final = 1 << 53
"""The most steps of a cell: JavaScript represents no larger integers exactly."""


class Tile(NamedTuple):
    """Cells of nodes over steps.

    Args:
        least: the least finite value, float32 [nodes, cells]; NaN if no value is finite.
        greatest: the greatest finite value, float32 [nodes, cells]; NaN if no value is finite.
        nan: the number of values that are NaN, uint16 [nodes, cells], at most 65,535.
        infinite: the number of infinite values, uint16 [nodes, cells], at most 65,535.
        from_zero: the number of updates of a parameter that was exactly 0, which have no ratio, uint16 [nodes, cells], at most
            65,535. A cell without any value was not measured.
    """

    least: Floats
    greatest: Floats
    nan: NDArray[np.uint16]
    infinite: NDArray[np.uint16]
    from_zero: NDArray[np.uint16]

    def bytes(self) -> bytes:
        """The five arrays one after the other, little-endian."""
        return b"".join(np.ascontiguousarray(each, dtype=each.dtype.newbyteorder("<")).tobytes() for each in self)


def unit_of(steps: NDArray[np.int64]) -> int:
    """The steps of a cell at level 0 of a table: the median distance between its ascending steps."""
    return min(max(int(np.median(np.diff(steps))), 1), _WIDEST) if len(steps) > 1 else 1


def progressions(steps: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Ascending steps as progressions (first, last, distance); a single one if all steps are evenly spaced.

    Example:
        >>> progressions(np.array([9, 19, 29, 30, 31]))
        [(9, 29, 10), (30, 31, 1)]
    """
    distances = np.diff(steps)
    # A progression ends at an index at which the distance changes, and at the last index.
    ends = [*(np.flatnonzero(np.diff(distances)) + 1).tolist(), len(steps) - 1]
    out: list[tuple[int, int, int]] = []
    at = 0
    for end in ends:
        if at <= end:  # false only if there are no steps
            out.append((int(steps[at]), int(steps[end]), int(distances[at]) if end > at else 1))
            at = end + 1
    return out


def tile(source: RunSource, tensor: str, stat: str, nodes: Sequence[Node], width: int, first: int, last: int) -> Tile:
    """The cells `first` to `last - 1` of some nodes of the tree of a table.

    Args:
        source: the run.
        tensor: with the prefix of the monitor.
        stat: the statistic.
        nodes: rows, or nodes with rows below them, which get the statistic of all their rows together.
        width: steps of a cell; cell i holds the steps from i * width to (i + 1) * width - 1.
        first: index of the first cell.
        last: index after the last cell.
    """
    steps, firsts = source.steps(tensor, stat), source.first_steps(tensor, stat)
    reader = Reader(source, tensor, stat, nodes)
    return _cells(steps, firsts, reader.read, len(nodes), width, first, last)


def difference(
    source: RunSource,
    other: RunSource,
    tensor: str,
    stat: str,
    pairs: Sequence[tuple[Node, Node | None]],
    width: int,
    first: int,
    last: int,
    as_ratio: bool = False,
) -> Tile:
    """As `tile`, for the values of one run minus those of another run, or for the logarithm of their ratio.

    Cells without a step that both runs have count as not measured, and so do nodes that the other run lacks.

    Args:
        source: the first run.
        other: the run that is subtracted.
        tensor: as of `tile`.
        stat: as of `tile`.
        pairs: nodes of the first run, each with the same node of the other run, or None if the other run lacks the node.
        width: as of `tile`.
        first: as of `tile`.
        last: as of `tile`.
        as_ratio: the logarithm to base 2 of the ratio instead of the difference: infinite if one value is 0, and 0 if both are.
    """
    common = common_points(source, other, tensor, stat)
    firsts = source.first_steps(tensor, stat)[common.first]
    shared = [(i, node, counterpart) for i, (node, counterpart) in enumerate(pairs) if counterpart is not None]
    columns = np.array([i for i, *_ in shared], dtype=np.intp)
    readers = (
        Reader(source, tensor, stat, [node for _, node, _ in shared]),
        Reader(other, tensor, stat, [counterpart for *_, counterpart in shared]),
    )

    def read(begin: int, end: int) -> Values:
        (x, x_measured, _), (y, y_measured, _) = (
            reader.at(points[begin:end]) for reader, points in zip(readers, (common.first, common.second), strict=True)
        )
        values = np.full((end - begin, len(pairs)), np.nan)
        measured = np.zeros(values.shape, dtype=np.bool_)
        measured[:, columns] = x_measured & y_measured
        with np.errstate(invalid="ignore"):
            # If both values are infinite, count the difference as infinite, not as NaN.
            differences = np.where(np.isinf(x) & np.isinf(y), np.inf, log_ratio(x, y) if as_ratio else x - y)
        values[:, columns] = np.where(measured[:, columns], differences, np.nan)
        return Values(values, measured)

    return _cells(common.steps, firsts, read, len(pairs), width, first, last)


def _cells(
    steps: NDArray[np.int64],
    firsts: NDArray[np.int64],
    read: Callable[[int, int], Values],
    nodes: int,
    width: int,
    first: int,
    last: int,
) -> Tile:
    """The cells of the values that `read` returns.

    Args:
        steps: ascending, int64 [T].
        firsts: the first step that each of them stands for; a window of steps fills every cell that has one of them.
        read: takes a range of indices of `steps`, and returns the values.
        nodes: number of nodes.
        width: as of `tile`.
        first: as of `tile`.
        last: as of `tile`.
    """
    begin, end = int(np.searchsorted(steps, first * width)), int(np.searchsorted(firsts, last * width))
    shape = nodes, last - first
    out = Tile(
        np.full(shape, np.inf, np.float32),
        np.full(shape, -np.inf, np.float32),
        *(np.zeros(shape, np.uint16) for _ in range(3)),
    )
    for at in range(begin, end, CHUNK):
        stop = min(at + CHUNK, end)
        values = read(at, stop)
        ends = np.minimum(steps[at:stop] // width, last - 1) - first
        counts = ends - np.maximum(firsts[at:stop] // width - first, 0) + 1
        cells = ends
        if (counts > 1).any():
            # Repeat each value for all cells that its window covers.
            repeated = np.repeat(np.arange(stop - at), counts)
            cells = ends[repeated] - (np.cumsum(counts)[repeated] - 1 - np.arange(len(repeated)))
            values = values.at(repeated)
        _reduce(values, cells, out)
    empty = out.least > out.greatest
    out.least[empty] = out.greatest[empty] = np.nan
    return out


def _reduce(read: Values, cells: NDArray[np.int64], out: Tile) -> None:
    """Merge values into the cells of a tile.

    Args:
        read: the values of some steps.
        cells: index of the cell of each step, ascending, int64 [steps].
        out: the tile to update.
    """
    starts = np.flatnonzero(np.diff(cells, prepend=cells[0] - 1))
    targets = cells[starts]
    from_zero = np.zeros(read.values.shape, np.bool_) if read.from_zero is None else read.from_zero
    with np.errstate(over="ignore"):
        values = read.values.astype(np.float32)
    finite = np.isfinite(values)
    is_all = bool(finite.all())
    low = values if is_all else np.where(finite, values, np.float32(np.inf))
    high = values if is_all else np.where(finite, values, np.float32(-np.inf))
    out.least[:, targets] = np.minimum(out.least[:, targets], np.minimum.reduceat(low, starts, axis=0).T)
    out.greatest[:, targets] = np.maximum(out.greatest[:, targets], np.maximum.reduceat(high, starts, axis=0).T)
    if is_all:
        return
    is_infinite = np.isinf(values) & ~from_zero
    for counts, is_counted in (
        (out.nan, np.isnan(values) & read.measured),
        (out.infinite, is_infinite),
        (out.from_zero, from_zero),
    ):
        total = np.add.reduceat(is_counted.astype(np.uint32), starts, axis=0).T + counts[:, targets]
        counts[:, targets] = np.minimum(total, 65535)
