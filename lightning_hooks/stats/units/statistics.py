"""The statistics of units: pure functions of the units of a row, from [..., units, 4] to [...].

To add a statistic, add a line to `UNIT_STATISTICS` and a test. All statistics follow these conventions:

- A unit with a NaN element has NaN as its sum, its sum of squares and its maximum. Such a unit makes every statistic NaN,
except for `dead_units`, which counts the units that are certainly dead, and for the indices, which point to the first such
unit.
- A median is taken over the units with elements other than 0. In a layer whose units are mostly dead, the median of all units
  would be 0, and any other unit would look like an outlier.
- A statistic without a value is NaN, for example a quotient 0/0 such as the variation of a load that is 0 everywhere.
- The load of a unit is the sum of its elements if no element of the tensor is negative (probabilities of a router, one-hot
  indices, rectified activations), and the sum of their squares otherwise, since positive and negative elements cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_hooks.stats.units.schema import ABS_MAX, SQUARE, SUM, Array

DEAD: Final = 1e-5
"""A unit is dead if all its magnitudes are below this limit, which is that of TheDeepChecker (Ben Braiek and Khomh 2023,
"Testing Feedforward Neural Networks Training Programs", its `settings.yaml`)."""
OUTLIER: Final = 100.0
"""The magnitude that an outlier exceeds (Sun et al. 2024, "Massive Activations in Large Language Models", arXiv 2402.17762)."""
OUTLIER_OVER_RMS: Final = 674.0
"""The multiple of the median root mean square that the magnitude of an outlier exceeds. Sun et al. require 1000 times the
median magnitude of all elements, which for normally distributed elements is 0.674 times their root mean square."""
EQUAL: Final = 1e-6
"""All elements of a unit are equal if their mean is so close to their largest magnitude, as a share of that."""
_COARSE: Final = 1e-3
"""A variation above this share is larger than the error of 3e-4 that sums in float32 have."""


class Units:
    """The units of some rows, and what several statistics need of them, each computed once.

    Args:
        moments: float64 [..., units, 4] in the order of `schema.UNIT_MOMENTS`.
        elements: the number of elements of each unit, [...].
        nonnegative: whether no element is negative, [...]: whether the moment `min` of the row is at least 0. False is always
            allowed.
    """

    def __init__(self, moments: Array, elements: ArrayLike = 1.0, nonnegative: ArrayLike = False) -> None:
        # Copy each moment into an array of its own, because NumPy reads adjacent numbers faster than every fourth one.
        self.sums, self.squares, self.abs_max = (np.ascontiguousarray(moments[..., i]) for i in (SUM, SQUARE, ABS_MAX))
        self.elements = np.asarray(elements, dtype=np.float64)
        self._nonnegative = np.asarray(nonnegative, dtype=np.bool_)

    @cached_property
    def load(self) -> Array:
        """The load of each unit, [..., units]: its sum if no element of the tensor is negative, else its sum of squares."""
        return np.where(self._nonnegative[..., None], self.sums, self.squares)

    @cached_property
    def mean_squares(self) -> Array:
        """The mean square of each unit, [..., units]."""
        values: Array = self.squares / self.elements[..., None]
        return values


class UnitStatistic(NamedTuple):
    """A number that follows from the units of a row.

    Args:
        name: the name in rules and tags.
        formula: maps units to values float64 [...].
    """

    name: str
    formula: Callable[[Units], Array]


def _median_of_used(values: Array) -> Array:
    """The median of the values that are not 0, [...] from [..., units]; NaN if a value is NaN or all values are 0."""
    # Replace zeros by -inf, so that sorting moves them to the front. np.sort moves NaN to the end, where `undefined` tests it.
    ordered = np.sort(np.where(values == 0, -np.inf, values), axis=-1)
    many = values.shape[-1]
    used = np.count_nonzero(values, axis=-1)[..., None]
    low = np.take_along_axis(ordered, np.clip(many - used + (used - 1) // 2, 0, many - 1), axis=-1)
    high = np.take_along_axis(ordered, np.clip(many - used + used // 2, 0, many - 1), axis=-1)
    # Halve both before adding them, so that the sum of large numbers does not overflow.
    median = np.where(low == high, low, low * 0.5 + high * 0.5)
    undefined = (used == 0) | np.isnan(ordered[..., -1:])
    return np.where(undefined, np.nan, median)[..., 0]


def _dead_units(units: Units) -> Array:
    values: Array = np.mean(units.abs_max < DEAD, axis=-1)
    return values


def _outlier_units(units: Units) -> Array:
    largest = units.abs_max
    unknown = np.isnan(largest).any(axis=-1)
    are_large = largest > OUTLIER
    # Few layers have such units, so the median is seldom needed.
    if are_large.any():
        are_large &= largest > OUTLIER_OVER_RMS * _median_of_used(np.sqrt(units.mean_squares))[..., None]
    return np.where(unknown, np.nan, are_large.sum(axis=-1))


def _unit_max_over_median(units: Units) -> Array:
    values: Array = units.abs_max.max(axis=-1) / _median_of_used(units.abs_max)
    return values


def _load_cv(units: Units) -> Array:
    values: Array = units.load.std(axis=-1) / units.load.mean(axis=-1)
    return values


def _effective_units(units: Units) -> Array:
    shares = units.load / units.load.sum(axis=-1, keepdims=True)
    # The limit of x log x at 0 is 0.
    terms = np.where(shares == 0, 0.0, shares * np.log(np.where(shares == 0, 1.0, shares)))
    values: Array = np.exp(-terms.sum(axis=-1))
    return values


def _unit_variation(units: Units) -> Array:
    mean = units.sums / units.elements[..., None]
    square = units.mean_squares
    # Rounding makes the variance of a nearly constant unit any small number, also a negative one. The smallest variance of
    # unequal elements stands for it, and 0 for that of equal ones, whose mean is their largest magnitude.
    variance = np.maximum(square - np.square(mean), np.square(EQUAL * units.abs_max))
    values: Array = np.sqrt(variance.sum(axis=-1) / square.sum(axis=-1))
    if (values < _COARSE).any():
        variance[np.abs(mean) >= (1 - EQUAL) * units.abs_max] = 0.0
        values = np.where(values < _COARSE, np.sqrt(variance.sum(axis=-1) / square.sum(axis=-1)), values)
    return values


def _first_largest(values: Array, ties: Array) -> Array:
    """The index of the largest value; among equal values, of the largest tie-breaker. NaN counts as the largest value."""
    best = values.max(axis=-1, keepdims=True)
    equal = (values == best) | (np.isnan(values) & np.isnan(best))
    index: NDArray[np.intp] = np.argmax(np.where(equal, ties, -np.inf), axis=-1)
    return index.astype(np.float64)


def _top_unit(units: Units) -> Array:
    return _first_largest(units.abs_max, units.load)


def _busiest_unit(units: Units) -> Array:
    return _first_largest(units.load, units.abs_max)


UNIT_STATISTICS: Final = (
    # The share of units whose magnitudes in the step are all below 1e-5.
    UnitStatistic("dead_units", _dead_units),
    # The number of units with a magnitude above OUTLIER and above OUTLIER_OVER_RMS times the median root mean square of units.
    UnitStatistic("outlier_units", _outlier_units),
    # The largest magnitude over the median of the units' largest magnitudes.
    UnitStatistic("unit_max_over_median", _unit_max_over_median),
    # The coefficient of variation of the load: its standard deviation over its mean. Shazeer et al. 2017 (arXiv 1701.06538)
    # define it for experts.
    UnitStatistic("load_cv", _load_cv),
    # The exponential of the entropy of the shares of the load (the Hill number of order 1): n for n equal units, and 1 if a
    # single unit carries the whole load.
    UnitStatistic("effective_units", _effective_units),
    # The index of the unit with the largest magnitude; among equal magnitudes, that with the largest load.
    UnitStatistic("top_unit", _top_unit),
    # The index of the unit with the largest load; among equal loads, that with the largest magnitude.
    UnitStatistic("busiest_unit", _busiest_unit),
    # How much units vary over the elements of the step, relative to their size: 0 for a tensor in which every unit has one
    # value, whatever the sample, and 1 for units of mean 0.
    UnitStatistic("unit_variation", _unit_variation),
)
NAMES: Final = tuple(statistic.name for statistic in UNIT_STATISTICS)
FORMULAS: Final[dict[str, Callable[[Units], Array]]] = {statistic.name: statistic.formula for statistic in UNIT_STATISTICS}


def compute(stat: str, moments: Array, elements: ArrayLike = 1.0, nonnegative: ArrayLike = False) -> Array:
    """One statistic of units, float64 [...]; NaN if there are no units or no elements.

    Args:
        stat: one of `NAMES`.
        moments: float64 [..., units, 4].
        elements: the number of elements of each unit, [...].
        nonnegative: whether no element of the tensor is negative, [...].

    Example:
        >>> router = np.array([[6.0, 6.0, 1.0, 2.0], [2.0, 2.0, 1.0, 6.0], [0.0, 0.0, 0.0, 8.0]])
        >>> float(compute("load_cv", router, 8.0, nonnegative=True)), float(compute("dead_units", router, 8.0))
        (0.9354143466934853, 0.3333333333333333)
    """
    values: Array = compute_all(moments, elements, nonnegative, (stat,))[..., 0]
    return values


def compute_all(
    moments: Array, elements: ArrayLike = 1.0, nonnegative: ArrayLike = False, stats: Sequence[str] = NAMES
) -> Array:
    """Several statistics of units, float64 [..., stats]. The arguments are those of `compute`.

    Example:
        >>> compute_all(np.ones((2, 3, 4))).shape == (2, len(NAMES))
        True
    """
    values = np.full((*moments.shape[:-2], len(stats)), np.nan)
    if moments.shape[-2]:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            units = Units(moments, elements, nonnegative)
            for column, stat in enumerate(stats):
                values[..., column] = np.where(units.elements > 0, FORMULAS[stat](units), np.nan)
    return values
