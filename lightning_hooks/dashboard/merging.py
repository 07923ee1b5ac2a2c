"""The statistic of several rows together, from the statistics of each: exact where the tables hold what that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
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
