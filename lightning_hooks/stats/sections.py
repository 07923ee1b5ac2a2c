"""The layout of the flat state of a table: moments, histograms, weighted sums, sums over pairs, requests."""

from __future__ import annotations

import itertools
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.errors import UnsupportedError
from lightning_hooks.stats import schema
from lightning_hooks.stats.histogram import BUCKETS
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.pairs import SUMS

Flat = TypeVar("Flat", Tensor, NDArray[np.float64])
FACTOR: Final = -2
STOP: Final = -1
REQUESTS: Final = 2
"""The last elements of a state are the requests of a rank; `FACTOR` and `STOP` are their indices."""


def refuse_narrow(device: torch.device) -> None:
    """Refuse the device of a model that cannot hold the state of a table: it has no float64 numbers."""
    if device.type == "mps":
        raise UnsupportedError(
            f"the model is on the device {device.type!r}, which has no float64 numbers, in which statistics and "
            "reports of transforms are computed; use accelerator='cpu', or in a plain loop model.cpu()"
        )


class Sections:
    """The sections of a flat state.

    Args:
        functions: the number of weighted sums, one for each function of a user.
        pairs: the number of rows with sums over pairs of gradients.

    Example:
        >>> sections = Sections(rows=2, histograms=1)
        >>> [tuple(part.shape) for part in sections.split(sections.blank())]
        [(2, 9), (1, 509), (0, 2), (0, 5)]
    """

    def __init__(self, rows: int, histograms: int = 0, functions: int = 0, pairs: int = 0) -> None:
        self._rows = rows
        self._ends = tuple(itertools.accumulate((rows * MOMENTS, histograms * BUCKETS, 2 * functions, SUMS * pairs)))

    @property
    def size(self) -> int:
        """Elements of the whole state."""
        return self._ends[-1] + REQUESTS

    def blank(self, device: torch.device | str = "cpu") -> Tensor:
        """A state in which nothing was measured, float64."""
        state = torch.empty(self.size, dtype=torch.float64, device=device)
        self.clear(state)
        return state

    def clear(self, state: Tensor | NDArray[np.float64]) -> None:
        """Reset a state: neutral moments, and zeros elsewhere."""
        state[:] = 0.0
        for column, value in schema.NOT_ZERO:
            state[column : self._ends[0] : MOMENTS] = value

    def histogram(self, index: int) -> int:
        """The first element of a histogram."""
        return self._ends[0] + index * BUCKETS

    def moments_of(self, state: Flat) -> Flat:
        """The first part of `split`: raw moments [rows, 9]."""
        return state[: self._ends[0]].reshape(self._rows, MOMENTS)

    def split(self, state: Flat) -> tuple[Flat, Flat, Flat, Flat]:
        """The four parts, as views.

        Returns:
            Moments [rows, 9], histograms [histograms, BUCKETS], weighted sums with their weights [functions, 2], and sums over
            pairs [pairs, 5].
        """
        first, second, third, fourth = self._ends
        return (
            self.moments_of(state),
            state[first:second].reshape(-1, BUCKETS),
            state[second:third].reshape(-1, 2),
            state[third:fourth].reshape(-1, SUMS),
        )
