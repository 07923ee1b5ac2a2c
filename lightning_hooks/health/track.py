"""Track: one statistic of one tensor over the steps that health rules read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.health.window import Array


class Track(NamedTuple):
    """One statistic of one tensor over the window.

    Args:
        tensor: `grad`, `output` …; empty for a number of the whole step.
        stat: `norm`, `dead_units` …; for a number of the whole step its tag.
        names: the names of the rows.
        rows: their indices in the views.
        steps: the steps at which the monitor published a view, ascending, int64 [window].
        values: float64 [window, rows]; NaN where a row was not measured.
        new: the part of the window that the rule has not judged before.
    """

    tensor: str
    stat: str
    names: tuple[str, ...]
    rows: NDArray[np.intp]
    steps: NDArray[np.int64]
    values: Array
    new: slice


def last_known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each number, or the last one before it of its row where it was not measured; NaN before the first.

    Args:
        values: float64 [window, rows].

    Example:
        >>> last_known(np.array([[np.nan], [2.0], [np.nan]])).ravel().tolist()
        [nan, 2.0, 2.0]
    """
    rows = np.arange(len(values))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(values), 0, rows), axis=0)
    known: NDArray[np.float64] = np.take_along_axis(values, last, axis=0)
    return known
