"""Spikes: single steps at which a series jumps far above all that came before, and from which it comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
HISTORY: Final = 128
"""The number of steps that a spike is compared with."""
FULL_HISTORY: Final = 64
"""The number of measured steps from which on they say what is usual."""
SHORT_HISTORY: Final = 32
"""The number of measured steps from which on they do so for a far larger jump."""
EARLY_TIMES: Final = 4.0
"""The factor by which a jump must be larger with a shorter history."""
LOCAL: Final = 9
"""The number of steps whose median is the level from which a spike rises."""


class Spike(NamedTuple):
    """A spike of one series.

    Args:
        at: the index of the spike.
        back: the index at which the series has come back, which is when the spike is known.
        limit: what the series would not have exceeded.
    """

    at: int
    back: int
    limit: float


def spikes(
    values: Array,
    new: slice,
    limits: Sequence[Callable[[Array], float]],
    settle: int,
    least_jump: float = 1.0,
    least_history: int = FULL_HISTORY,
) -> Iterator[Spike]:
    """The spikes of a series that are known at its new steps.

    A jump after which the series stays up is no spike: harder data or a changed loss do that too.

    Args:
        values: float64 [steps]; NaN where a step has none.
        new: the part of the steps that was not judged before.
        limits: what a spike exceeds, each from up to 128 finite numbers before it; the cheapest first.
        settle: within so many steps the series must have come back by half of the jump.
        least_jump: a spike is more than so many times the number before it.
        least_history: no spike is told before so many measured steps.

    Example:
        >>> series = np.array([1.0, 1.1] * 40 + [9.0, 1.0])
        >>> list(spikes(series, slice(0, 82), [lambda history: 3 * history.max()], settle=5))
        [Spike(at=80, back=81, limit=3.3000000000000003)]
    """
    for at in range(max(new.start - settle, least_history), new.stop - 1):
        if not np.isfinite(values[at]) or values[at] <= values[at - 1] or values[at] <= least_jump * values[at - 1]:
            continue
        history = values[max(0, at - HISTORY) : at]
        history = history[np.isfinite(history)]
        if len(history) < least_history:
            continue
        limit = -np.inf
        for limit_of in limits:
            limit = max(limit, limit_of(history))
            if not values[at] > limit:
                break
        else:
            middle = (values[at] + np.median(history[-LOCAL:])) / 2
            below = np.flatnonzero(values[at + 1 : min(at + settle + 1, new.stop)] < middle)
            if len(below) and at + 1 + below[0] >= new.start:
                yield Spike(at, int(at + 1 + below[0]), float(limit))


def caution(history: Array) -> float:
    """The factor by which a limit is raised: 1 for a full history."""
    return 1.0 if len(history) >= FULL_HISTORY else EARLY_TIMES


def six_sigma(history: Array, sigmas: float) -> float:
    """The mean of a history plus so many standard deviations."""
    return float(history.mean() + sigmas * history.std())


def largest_deviation(history: Array) -> tuple[float, float]:
    """The level at the end of a history, and the largest deviation of a number from the level before it.

    A trend hardly adds to the deviations, because the level is the median of only the last numbers.
    """
    levels = np.median(np.lib.stride_tricks.sliding_window_view(history, LOCAL), axis=1)
    return float(levels[-1]), float(np.abs(history[LOCAL:] - levels[:-1]).max())
