"""Whether a series falls, has learned or is lost: the second witness of rules whose patterns also occur in healthy training."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

# The standard error of the median of normally distributed numbers is 1.2533 times that of their mean.
_MEDIAN_ERROR = 1.2533
# A fall counts if it exceeds so many standard errors of the difference of two medians.
_TIMES_NOISE = 2.0
# A training has learned if its loss has fallen by so many standard errors. Chance alone does that once in a thousand trainings.
_TIMES_LEARNED = 3.0
# The noise of fewer numbers is not known.
_LEAST_NUMBERS = 4
ZERO: Final = 1e-8
"""A loss below it cannot fall any further, so that one which stands there is no fault."""


def noise_of(values: NDArray[np.float64]) -> float:
    """The standard deviation of a series around its trend, from the differences of neighbouring numbers.

    Half of normal noise lies within 0.6745 standard deviations of its median. A difference has twice the variance of a number.

    Args:
        values: float64 [steps], at least two.

    Example:
        >>> noise_of(np.linspace(2.0, 1.0, 50)) < 1e-12, round(noise_of(np.random.default_rng(0).normal(size=999)), 1)
        (True, 1.0)
    """
    with np.errstate(invalid="ignore"):
        steps = np.diff(values)
        return float(np.median(np.abs(steps - np.median(steps))) / 0.6745 / np.sqrt(2))


def error_of(noise: float, *counts: int) -> float:
    """The standard error of the median of some numbers, or of the difference of two such medians.

    Args:
        noise: of the numbers, as `noise_of` returns it.
        counts: the number of numbers of each median.

    Example:
        >>> round(error_of(1.0, 100), 3), round(error_of(1.0, 200, 200), 3)
        (0.125, 0.125)
    """
    return float(_MEDIAN_ERROR * noise * np.sqrt(sum(1 / count for count in counts)))


def learned(early: NDArray[np.float64], late: NDArray[np.float64]) -> bool | None:
    """Whether the median of late numbers is below that of early ones by three times its noise.

    Args:
        early: float64 [steps]; numbers that are not finite do not count.
        late: likewise, but infinity is far above all others.

    Returns:
        None if one of them has fewer than four numbers, so that its noise is not known.

    Example:
        >>> loss = np.random.default_rng(0).normal(2.3, 0.02, 100)
        >>> learned(loss[:20], loss[80:]), learned(loss[:20], loss[80:] - 0.1), learned(loss[:20], loss[98:])
        (False, True, None)
    """
    early, late = early[np.isfinite(early)], late[~np.isnan(late)]
    if min(len(early), len(late)) < _LEAST_NUMBERS:
        return None
    if np.isinf(late).any():
        return False
    error = error_of(max(noise_of(early), noise_of(late)), len(early), len(late))
    begin, end = float(np.median(early)), float(np.median(late))
    return bool(begin - end > max(_TIMES_LEARNED * error, 1e-12 * abs(begin)))


def falls(values: NDArray[np.float64], window: int) -> bool | None:
    """Whether the median of the last quarter of a window is below that of its first quarter by more than its noise.

    The noise is estimated from the differences of neighbouring numbers, so that a steady trend does not count as noise.

    Args:
        values: float64 [steps]; NaN where a step has none.
        window: the number of last numbers to judge, at least 8.

    Returns:
        None if there are fewer numbers.

    Example:
        >>> falls(np.linspace(2.0, 1.0, 50), 50), falls(np.ones(50), 50), falls(np.ones(3), 50)
        (True, False, None)
    """
    known = values[~np.isnan(values)][-window:]
    if len(known) < window:
        return None
    quarter = max(window // 4, 2)
    first, last = np.median(known[:quarter]), np.median(known[-quarter:])
    with np.errstate(invalid="ignore"):
        error = error_of(noise_of(known), quarter, quarter)
        return bool(first - last > max(_TIMES_NOISE * error, 1e-12 * abs(first)))


def lost(values: NDArray[np.float64], early: float, recent: int = 10) -> NDArray[np.bool_]:
    """At which steps a series that falls in training has given back at least half of what it had gained since its early level.

    A series that has gained nothing is lost where it is at its early level or above.

    Args:
        values: float64 [steps], of the loss; NaN where a step has none. Infinity is lost.
        early: its early level.
        recent: the number of last numbers whose median is the level at a step.

    Returns:
        bool [steps]; False for the first steps, which have fewer numbers before them.

    Example:
        >>> learned = np.linspace(2.0, 0.5, 40)
        >>> lost(learned, early=2.0).any(), lost(np.append(learned, [0.7] * 20), 2.0).any()
        (np.False_, np.False_)
        >>> np.flatnonzero(lost(np.append(learned, [1.9] * 20), 2.0))[0]
        np.int64(44)
    """
    out = np.zeros(len(values), dtype=np.bool_)
    at = np.flatnonzero(~np.isnan(values))
    if len(at) < recent or not np.isfinite(early):
        return out
    windows = np.lib.stride_tricks.sliding_window_view(values[at], recent)
    level = np.sort(windows, axis=1)[:, recent // 2]
    best = np.minimum(np.minimum.accumulate(level), early)
    out[at[recent - 1 :]] = level >= (best + early) / 2
    return out
