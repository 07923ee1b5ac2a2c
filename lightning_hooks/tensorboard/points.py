"""Points: where the values of a tag lie in the event files of a run, one value for each step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.tensorboard.event_file import Offsets

Floats = NDArray[np.float64]


class Points(NamedTuple):
    """The positions of the values of one or several tags in the event files, one value for each step.

    Args:
        steps: ascending, each once, int64 [T].
        wall_times: in seconds since 1970, float64 [T].
        files: index into `RunIndex.files` for each value, int64 [T].
        starts: offset of each payload in its file, int64 [T].
        sizes: of the payloads in bytes, int64 [T].
    """

    steps: Offsets
    wall_times: Floats
    files: Offsets
    starts: Offsets
    sizes: Offsets

    def at(self, which: slice | NDArray[np.intp]) -> Points:
        """The points with these indices."""
        steps, wall_times, files, starts, sizes = self
        return Points(steps[which], wall_times[which], files[which], starts[which], sizes[which])


_NONE: Final = np.empty(0, dtype=np.int64)
_NO_POINTS: Final = Points(_NONE, _NONE.astype(np.float64), _NONE, _NONE, _NONE)


def joined(pieces: Iterable[Points]) -> Points:
    """The points of several files or tags, by step. If a step occurs several times, the last one counts.

    Example:
        >>> first, second = (Points(*[np.array([i, 3])] * 5) for i in (1, 2))
        >>> joined([first, second]).steps.tolist()
        [1, 2, 3]
    """
    points = Points(*(np.concatenate(column) for column in zip(_NO_POINTS, *pieces, strict=True)))
    # `np.unique` returns first indices, so reverse the steps to get the last.
    _, first = np.unique(points.steps[::-1], return_index=True)
    return points.at(len(points.steps) - 1 - first)
