"""Sets of rows that are merged again and again: which rows, prepared once; merged at every step in a few vector operations.

With them everything that follows from moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.moments import MOMENTS, by_chan
from lightning_hooks.stats.scalars import compute, compute_all
from lightning_hooks.stats.schema import COUNT

Array = NDArray[np.float64]


class Merges:
    """Unions of rows, each computed by the rule of `moments.merge_groups`.

    Args:
        members: for each union its rows, at least one; a row may belong to several.

    Example:
        >>> rows = np.array([[2.0, 1.0, 2.0, 2.0, 0.0, 2.0, 1.0, 0.0, 0.0], [1.0, 4.0, 0.0, 4.0, 4.0, 4.0, 0.0, 0.0, 0.0]])
        >>> Merges([[0, 1]])(rows)[0, :3].tolist()
        [3.0, 2.0, 8.0]
    """

    def __init__(self, members: Sequence[Sequence[int] | NDArray[np.integer[Any]]]) -> None:
        sizes = np.array([len(rows) for rows in members], dtype=np.intp)
        self.rows = np.concatenate([np.asarray(rows, dtype=np.int32) for rows in members] or [np.zeros(0, dtype=np.int32)])
        self.starts = np.concatenate([[0], np.cumsum(sizes)])[: len(members)].astype(np.int64)
        self._sizes = sizes

    @cached_property
    def _union(self) -> NDArray[np.intp]:
        return np.repeat(np.arange(len(self)), self._sizes)

    def __len__(self) -> int:
        return len(self.starts)

    def __call__(self, moments: Array) -> Array:
        """The moments of the unions.

        Args:
            moments: float64 [rows, 9].

        Returns:
            float64 [len(members), 9].
        """
        if len(self) == 0:
            return np.empty((0, MOMENTS))
        with np.errstate(invalid="ignore", over="ignore"):
            merged: Array = by_chan(
                moments[self.rows],
                lambda x: np.add.reduceat(x, self.starts, axis=0),
                lambda x: np.minimum.reduceat(x, self.starts),
                lambda x: np.maximum.reduceat(x, self.starts),
                lambda x: x[self._union],
            )
        return merged


class Derived(NamedTuple):
    """What follows from the moments of a step.

    Args:
        moments: of rows and of unions, float64 [rows, 9] and [unions, 9].
        taken: what was wanted, float64, a vector; NaN where a row has no elements.
        complete: whether every row has elements.
    """

    moments: tuple[Array, Array]
    taken: Array
    complete: bool

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Which rows and unions have elements."""
        return np.concatenate([part[:, COUNT] for part in self.moments]) > 0

    def norms(self) -> Array:
        """The norms of all rows and unions."""
        return compute("norm", np.concatenate(self.moments))


class Statistics:
    """Several statistics of rows and of unions of rows, and how many elements each holds.

    Args:
        stats: keys of `STATISTICS`.
        merges: the unions.
        wanted: what is read of them at every step: places in a flat table of all statistics, and then the counts, of all rows
            and unions, [statistics + 1, rows + unions].
    """

    def __init__(self, stats: Sequence[str], merges: Merges, wanted: NDArray[np.int32]) -> None:
        self._stats = tuple(stats)
        self._merges = merges
        self.wanted = wanted

    def __call__(self, moments: Array) -> Derived:
        """The statistics of a step.

        Args:
            moments: float64 [rows, 9], contiguous.
        """
        unions = self._merges(moments)
        united = np.concatenate([moments, unions])
        every = np.concatenate([compute_all(self._stats, united), united[None, :, COUNT]])
        return Derived((moments, unions), every.ravel().take(self.wanted), bool(every[-1].all()))
