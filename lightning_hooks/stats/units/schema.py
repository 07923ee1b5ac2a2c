"""The four numbers that are kept of each unit of a row, and their merge.

A unit is one index along one dimension of a tensor: a channel of a convolution, a feature of a linear layer, an expert of a
router. The units of a row are a float64 array [units, 4]. Arrays of disjoint elements merge by sums and maxima alone, so
merging over calls, micro-batches and ranks is exact. All units of a tensor have the same number of elements, `numel / units`,
which the caller counts.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class UnitMoment(NamedTuple):
    """One number of a unit.

    Args:
        name: the name of the column.
        merge: the rule for the union of disjoint sets of elements. A maximum is NaN if one of the numbers is NaN.
        power: multiplying all elements by a positive factor multiplies the number by this power of the factor.
    """

    name: str
    merge: Literal["sum", "max"]
    power: int = 0


UNIT_MOMENTS: Final = (
    UnitMoment("sum", "sum", power=1),
    UnitMoment("square", "sum", power=2),  # sum of squares
    UnitMoment("abs_max", "max", power=1),
    UnitMoment("zeros", "sum"),  # number of exact zeros
)
COLUMNS: Final = len(UNIT_MOMENTS)
SUM, SQUARE, ABS_MAX, ZEROS = range(COLUMNS)
"""The indices of the columns. All numbers of a unit without elements are 0, and merging with them changes nothing."""


def merge(a: Array, b: Array) -> Array:
    """The units of the union of two disjoint sets of elements, unit by unit: all three [..., units, 4].

    Example:
        >>> merge(np.array([[1.0, 1.0, 1.0, 0.0]]), np.array([[-3.0, 9.0, 3.0, 2.0]])).tolist()
        [[-2.0, 10.0, 3.0, 2.0]]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        merged: Array = a + b
        # np.maximum propagates NaN, which np.fmax would hide. A hidden NaN is worse than a gap in a chart.
        np.maximum(a[..., ABS_MAX], b[..., ABS_MAX], out=merged[..., ABS_MAX])
    return merged


def merge_neighbours(units: Array, groups: int) -> Array:
    """Merges groups of neighbouring units, such as the features of each head of an attention layer.

    A group has `units / groups` times as many elements as a unit.

    Args:
        units: float64 [..., units, 4].
        groups: the number of groups, a divisor of the number of units.

    Returns:
        float64 [..., groups, 4].

    Raises:
        ValueError: the number of groups does not divide the number of units.

    Example:
        >>> merge_neighbours(np.array([[1.0, 1.0, 1.0, 0.0], [2.0, 4.0, 2.0, 1.0]]), groups=1).tolist()
        [[3.0, 5.0, 2.0, 1.0]]
    """
    many = units.shape[-2]
    if groups < 1 or many % groups:
        raise ValueError(f"groups={groups}: {many} units do not form {groups} groups of equal size; choose a divisor of {many}")
    grouped = units.reshape(*units.shape[:-2], groups, many // groups, COLUMNS)
    with np.errstate(invalid="ignore", over="ignore"):
        merged: Array = grouped.sum(axis=-2)
        merged[..., ABS_MAX] = grouped[..., ABS_MAX].max(axis=-1)
    return merged


def rescale(units: Any, factor: Any) -> Any:
    """The units after all elements were multiplied by a factor. Elements that underflow to 0 are not counted as zeros.

    Args:
        units: a NumPy array or a torch tensor float64 [..., units, 4].
        factor: positive, a number or a scalar tensor.

    Example:
        >>> rescale(np.array([[1.0, 3.0, 1.0, 5.0]]), 2.0).tolist()
        [[2.0, 12.0, 2.0, 5.0]]
    """
    scaled = units * 1.0  # a copy, because the argument must not change
    for column, moment in enumerate(UNIT_MOMENTS):
        if moment.power:
            scaled[..., column] *= factor**moment.power
    return scaled
