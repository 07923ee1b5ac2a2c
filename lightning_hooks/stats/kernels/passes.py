"""The moments of one array by a few passes of NumPy and torch over it, in its own precision wherever that loses nothing.

Float32 sums are taken over rows of some hundred or thousand numbers, and then over the results. Squares of
numbers that vary little about a large mean are taken of what is left without the mean. What would overflow, underflow or is
not finite is left to the reference, which does everything in float64 at a tenth of the speed. A piece of a large array stays
in the caches until all passes have read it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats.kernels import reference
from lightning_hooks.stats.moments import neutral

Array = NDArray[Any]
Row = tuple[float, ...]

BLOCK: Final = 512  # numbers in a row of sums: few enough that their float32 errors stay at 1e-7
NORM: Final = 128  # in a row of squares where torch adds them up, which it does one after the other in each lane
LONG: Final = 4096  # in a row of sums where torch adds them up, which it does pair by pair
MASKS: Final = 1024  # bytes of a mask in a row of eight at a time: none of the eight comes above 128
ALONE: Final = 1 << 18  # elements of a piece that one thread reads, and NumPy is faster at small ones
SHARED: Final = 1 << 20  # of one that torch's threads share
NEUTRAL: Final[Row] = tuple(neutral(1)[0].tolist())
UNKNOWN: Final = float("nan")
# Of the squares, the part that the deviations must be: below it the mean is taken away first.
SHARE: Final = 0.3


class Kind(NamedTuple):
    """What is known of a type of numbers.

    Args:
        least: between this magnitude and the next sums of squares neither overflow nor lose what counts: the greatest square is
            far above the smallest normal number,
        most: and so many greatest squares as memory holds are far below the largest.
        ones: a row of them.
        zero: as an array, which is quicker to compare with than a number.
    """

    least: float
    most: float
    ones: Array
    zero: Array


KINDS: Final = {
    np.dtype(kind): Kind(least, most, np.ones(BLOCK, kind), np.zeros((), kind))
    for kind, least, most in ((np.float32, 1e-12, 1e15), (np.float64, 1e-120, 1e140))
}
_least, _greatest, _sum, _count = np.minimum.reduce, np.maximum.reduce, np.add.reduce, np.count_nonzero
_vecdot, _dot, _equal = np.vecdot, np.dot, np.equal


def measure(flat: Tensor, tiny: float, *, magnitudes: bool = True) -> Row:
    """The raw moments of a tensor.

    Args:
        flat: float32 or float64 in the memory of this machine, one dimension, contiguous, without a graph.
        tiny: the smallest magnitude that is no underflow; that of float32 or more.
        magnitudes: whether the sum of magnitudes and the underflows are asked for; NaN in their places if not, and a third of
            the time is saved.

    Returns:
        As `moments` has them, nine numbers.
    """
    size = flat.numel()
    if size <= ALONE:
        return moments_of(flat.numpy(), tiny, magnitudes=magnitudes) if size else NEUTRAL
    threads = flat.dtype is torch.float32 and torch.get_num_threads() > 1
    row = NEUTRAL
    most = SHARED if threads else ALONE
    for part in flat.split(most) if size > most else (flat,):
        threaded = part if threads and part.numel() > ALONE else None
        row = merged(row, moments_of(part.numpy(), tiny, threaded, magnitudes=magnitudes))
    return row


def moments_of(values: Array, tiny: float, threaded: Tensor | None = None, *, magnitudes: bool = True) -> Row:
    """The raw moments of an array that fits in the caches.

    Args:
        values: float32 or float64 [n], n > 0.
        tiny: as in `measure`.
        threaded: the same numbers, where the threads of torch are to read them.
        magnitudes: as in `measure`.
    """
    ends = (_least(values), _greatest(values)) if threaded is None else torch.aminmax(threaded)
    low, high = float(ends[0]), float(ends[1])
    size = values.size
    peak = high if high > -low else -low
    kind = KINDS[values.dtype]
    if not kind.least < peak < kind.most:  # NaN too
        if low == high == 0.0:
            return size, 0.0, 0.0, 0.0, low, high, size, 0.0, 0.0
        return carefully(values, tiny)
    if low == high:
        return size, low, 0.0, size * peak, low, high, 0.0, 0.0, float(size * (peak < tiny))
    total, squares = _sums(values, kind.ones) if threaded is None else _sums_in_threads(threaded)
    mean, deviations = total / size, squares - total * (total / size)
    if deviations < SHARE * squares:
        centre = values.dtype.type(mean)
        rest, squares = _sums(values - centre, kind.ones) if threaded is None else _sums_in_threads(threaded - float(centre))
        mean, deviations = float(centre) + rest / size, squares - rest * (rest / size)
        if deviations < SHARE * squares:
            return carefully(values, tiny)
    zeros, below = 0, 0
    absolute = UNKNOWN
    if magnitudes:
        heights, absolute = _heights(values, threaded, low, total)
        if low < tiny and high > -tiny:
            below = int(_count(np.less(heights, tiny)))
            zeros = int(_count(_equal(values, kind.zero))) if below else 0
    elif low <= 0.0 <= high:
        zeros = int(_count(_equal(values, kind.zero))) if threaded is None else _zeros(threaded)
    return size, mean, deviations, absolute, low, high, zeros, 0.0, below - zeros if magnitudes else UNKNOWN


def carefully(values: Array, tiny: float) -> Row:
    """The raw moments of any array: all in float64, squares of numbers near one."""
    row: Row = tuple(reference.moments_of(torch.from_numpy(values), tiny).tolist())
    return row


def merged(one: Row, other: Row) -> Row:
    """The moments of two disjoint sets together, as `moments.merge` has it for tensors."""
    count = one[0] + other[0]
    if one[0] == 0.0 or other[0] == 0.0:
        return other if one[0] == 0.0 else one
    weight = other[0] / count
    apart = other[1] - one[1]
    mean = (1.0 - weight) * one[1] + weight * other[1]
    deviations = one[2] + other[2] + apart * apart * one[0] * weight
    # A NaN is carried on, whichever side it is on.
    low = one[4] if one[4] < other[4] or one[4] != one[4] else other[4]
    high = one[5] if one[5] > other[5] or one[5] != one[5] else other[5]
    return count, mean, deviations, one[3] + other[3], low, high, one[6] + other[6], one[7] + other[7], one[8] + other[8]


def _heights(values: Array, threaded: Tensor | None, low: float, total: float) -> tuple[Array, float]:
    """The magnitudes, and their sum."""
    if low >= 0.0:
        return values, total
    if threaded is None:
        heights = np.absolute(values)
        return heights, _sums(heights, KINDS[values.dtype].ones, squared=False)[0]
    magnitudes = threaded.abs()
    return magnitudes.numpy(), float(magnitudes.sum())


def _sums(values: Array, ones: Array, *, squared: bool = True) -> tuple[float, float]:
    """The sum of the numbers and, where it is asked for, of their squares; of at most as many rows as a row has numbers."""
    size = values.size
    rest = size % BLOCK
    total = squares = 0.0
    if rest:
        last, values = values[size - rest :], values[: size - rest]
        total, squares = float(_dot(last, ones[:rest])), float(_dot(last, last)) if squared else 0.0
    if rest < size:
        rows = values.reshape(-1, BLOCK)
        each = ones[: len(rows)]
        total += float(_dot(_vecdot(rows, ones), each))
        squares += float(_dot(_vecdot(rows, rows), each)) if squared else 0.0
    return total, squares


def _zeros(values: Tensor) -> int:
    """How many are zero. torch makes the mask, which it adds up slowly, but not as integers of eight bytes."""
    size = values.numel()
    rest = size % MASKS
    mask = values.to(torch.bool)
    whole = mask[: size - rest] if rest else mask
    others = int(whole.view(torch.int64).view(-1, MASKS // 8).sum(1).view(torch.uint8).sum())
    if rest:
        others += int(_count(mask[size - rest :].numpy()))
    return size - others


def _sums_in_threads(values: Tensor) -> tuple[float, float]:
    size = values.numel()
    rest = size % LONG
    whole = values[: size - rest] if rest else values  # torch adds up rows in half the time of all at once
    norms = torch.linalg.vector_norm(whole.view(-1, NORM), dim=1).numpy().astype(np.float64)
    total, squares = float(_sum(whole.view(-1, LONG).sum(1).numpy(), dtype=np.float64)), float(_dot(norms, norms))
    if rest:
        last = values[size - rest :].numpy()
        others = _sums(last, KINDS[last.dtype].ones)
        total, squares = total + others[0], squares + others[1]
    return total, squares
