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
