"""Where what lies in the flat state of a table: moments, histograms, weighted sums, sums over pairs, votes."""

from __future__ import annotations

import itertools
import math
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats.histogram import BUCKETS
from lightning_hooks.stats.merged import VOTES
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.pairs import SUMS
from lightning_hooks.stats.schema import MAX, MIN

Flat = TypeVar("Flat", Tensor, NDArray[np.float64])


class Sections:
    """The parts of a flat state.

    Args:
        rows: of moments.
        histograms: how many.
        functions: of users, each with a weighted sum.
        pairs: rows with sums over pairs of gradients.

    Example:
        >>> sections = Sections(rows=2, histograms=1)
        >>> [tuple(part.shape) for part in sections.split(sections.blank())]
        [(2, 9), (1, 509), (0, 2), (0, 5)]
    """

    def __init__(self, rows: int, histograms: int = 0, functions: int = 0, pairs: int = 0) -> None:
        self._rows = rows
        self._cuts = tuple(itertools.accumulate((rows * MOMENTS, histograms * BUCKETS, 2 * functions, SUMS * pairs)))

    @property
    def size(self) -> int:
        """Of the whole state."""
        return self._cuts[-1] + VOTES

    def blank(self) -> Tensor:
        """A state in which nothing was measured, float64."""
        state = torch.empty(self.size, dtype=torch.float64)
        self.clear(state)
        return state

    def clear(self, state: Tensor | NDArray[np.float64]) -> None:
        """Make a state one in which nothing was measured: rows of moments as `neutral` has them, else zeros."""
        state[:] = 0.0
        state[MIN : self._cuts[0] : MOMENTS] = math.inf
        state[MAX : self._cuts[0] : MOMENTS] = -math.inf

    def histogram(self, slot: int) -> int:
        """The first element of a histogram."""
        return self._cuts[0] + slot * BUCKETS

    def moments_of(self, state: Flat) -> Flat:
        """The first part of what `split` gives: raw moments [rows, 9]."""
        return state[: self._cuts[0]].reshape(self._rows, MOMENTS)

    def split(self, state: Flat) -> tuple[Flat, Flat, Flat, Flat]:
        """The four parts, as views.

        Args:
            state: of torch or of NumPy.

        Returns:
            Moments [rows, 9], histograms [histograms, BUCKETS], weighted sums with their weights [functions, 2], and sums over
            pairs [pairs, 5].
        """
        first, second, third, fourth = self._cuts
        return (
            self.moments_of(state),
            state[first:second].reshape(-1, BUCKETS),
            state[second:third].reshape(-1, 2),
            state[third:fourth].reshape(-1, SUMS),
        )
