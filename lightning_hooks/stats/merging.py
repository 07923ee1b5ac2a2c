"""Sets of rows that are merged again and again: which rows, prepared once; merged at every step in a few vector operations.

With them everything that follows from moments: in one call of the compiled part, or with NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats import kernels
from lightning_hooks.stats.moments import COUNT, M2, MAX, MEAN, MIN, MOMENTS
from lightning_hooks.stats.scalars import compute, compute_all, letters

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
        rows = moments[self.rows]
        count, mean = rows[:, COUNT], rows[:, MEAN]
        with np.errstate(invalid="ignore", over="ignore"):
            out = np.add.reduceat(rows, self.starts, axis=0)
            total = out[:, COUNT]
            share = count / np.maximum(total, 1.0)[self._union]
            out[:, MEAN] = np.add.reduceat(share * mean, self.starts)
            away = np.where(count == 0, 0.0, count * np.square(mean - out[self._union, MEAN]))
            out[:, M2] += np.add.reduceat(away, self.starts)
            out[:, MIN] = np.minimum.reduceat(rows[:, MIN], self.starts)
            out[:, MAX] = np.maximum.reduceat(rows[:, MAX], self.starts)
        return out


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
            and unions, [statistics + 1, rows + unions]. Kept as runs of neighbours, of which there are few.
    """

    def __init__(self, stats: Sequence[str], merges: Merges, wanted: NDArray[np.int32]) -> None:
        self._stats = tuple(stats)
        self._letters = letters(self._stats)
        self._merges = merges
        self._size = len(wanted)
        ends = np.flatnonzero(np.diff(wanted, append=-2) != 1) + 1  # what follows the last one is no neighbour of it
        lengths = np.diff(ends, prepend=0)
        self._runs = np.stack([wanted[ends - lengths], lengths], axis=1).astype(np.int32)

    @property
    def wanted(self) -> NDArray[np.int32]:
        """What is read at every step; worked out anew."""
        firsts, lengths = self._runs.T
        before = np.cumsum(lengths) - lengths
        return np.arange(self._size, dtype=np.int32) + np.repeat(firsts - before, lengths).astype(np.int32)

    @cached_property
    def _places(self) -> NDArray[np.int32]:
        return self.wanted

    def __call__(self, moments: Array) -> Derived:
        """The statistics of a step.

        Args:
            moments: float64 [rows, 9], contiguous.
        """
        merges = self._merges
        if kernels.compiled is not None:
            taken, unions = np.empty(self._size), np.empty((len(merges), MOMENTS))
            complete = kernels.compiled.derive(moments, merges.rows, merges.starts, unions, self._letters, self._runs, taken)
            return Derived((moments, unions), taken, complete)
        unions = merges(moments)
        united = np.concatenate([moments, unions])
        every = np.concatenate([compute_all(self._stats, united), united[None, :, COUNT]])
        return Derived((moments, unions), every.ravel().take(self._places), bool(every[-1].all()))
