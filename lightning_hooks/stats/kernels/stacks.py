"""The moments of many small arrays of one size, side by side: what a call of NumPy costs is shared between them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.kernels.passes import BLOCK, KINDS, SHARE, UNKNOWN, moments_of
from lightning_hooks.stats.moments import ABS_SUM, COUNT, M2, MAX, MEAN, MIN, MOMENTS, NONFINITE, UNDERFLOW, ZEROS

Array = NDArray[Any]
Rows = NDArray[np.float64]

LARGEST: Final = 1 << 14  # elements of an array that is worth stacking
FEWEST: Final = 8  # arrays that are worth stacking: fewer take less time one by one
TOGETHER: Final = 1 << 17  # elements of a stack, which is to lie in the caches


def measure(stack: Array, tiny: float, *, magnitudes: bool = True) -> Rows:
    """The raw moments of each row.

    Args:
        stack: float32 or float64 [rows, n], n > 0.
        tiny: as in `passes.measure`.
        magnitudes: as in `passes.measure`.

    Returns:
        float64 [rows, 9], the same numbers as `passes.measure` gives one by one, up to rounding.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # rows in which anything goes wrong are measured anew
        return _measure(stack, tiny, magnitudes)


def _measure(stack: Array, tiny: float, magnitudes: bool) -> Rows:
    rows, size = stack.shape
    out = np.empty((rows, MOMENTS))
    low, high = np.minimum.reduce(stack, axis=1).astype(np.float64), np.maximum.reduce(stack, axis=1).astype(np.float64)
    peak = np.maximum(-low, high)
    total, squares = _sums(stack)
    mean = total / size
    deviations = squares - total * mean
    if (deviations < SHARE * squares).any():
        centre = mean.astype(stack.dtype)
        rest, squares = _sums(stack - centre[:, None])
        mean, deviations = centre + rest / size, squares - rest * (rest / size)
    least, most, _, zero = KINDS[stack.dtype]
    constant = low == high
    good = (constant | (deviations >= SHARE * squares)) & (peak > least) & (peak < most)
    out[:, COUNT], out[:, NONFINITE] = size, 0.0
    out[:, MEAN], out[:, M2] = np.where(constant, low, mean), np.where(constant, 0.0, deviations)
    out[:, MIN], out[:, MAX] = low, high
    zeros = _each(np.equal(stack, zero)) if (low <= 0.0).any() and (high >= 0.0).any() else np.zeros(rows)
    out[:, ZEROS] = zeros
    if magnitudes:
        heights = np.absolute(stack)
        out[:, ABS_SUM] = np.where(constant, size * peak, _totals(heights))
        out[:, UNDERFLOW] = _each(np.less(heights, tiny)) - zeros if ((low < tiny) & (high > -tiny)).any() else 0.0
    else:
        out[:, ABS_SUM] = out[:, UNDERFLOW] = UNKNOWN
    for row in np.flatnonzero(~good).tolist():
        out[row] = moments_of(stack[row], tiny, magnitudes=magnitudes)
    return out


def _each(mask: NDArray[np.bool_]) -> Array:
    counts: Array = np.count_nonzero(mask, axis=1) if np.count_nonzero(mask) else np.zeros(len(mask))
    return counts


def _sums(stack: Array) -> tuple[Rows, Rows]:
    """The sums of the numbers and of their squares."""
    return _totals(stack), _totals(stack, squared=True)


def _totals(stack: Array, *, squared: bool = False) -> Rows:
    size, ones = stack.shape[1], KINDS[stack.dtype].ones
    whole = size // BLOCK * BLOCK
    blocks, rest = stack[:, :whole].reshape(len(stack), -1, BLOCK), stack[:, whole:]
    totals: Rows = np.vecdot(blocks, blocks if squared else ones).sum(1, dtype=np.float64)
    totals += np.vecdot(rest, rest if squared else ones[: size - whole])
    return totals
