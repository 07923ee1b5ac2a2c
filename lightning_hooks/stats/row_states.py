"""Row states: the numbers that accumulators keep of some rows, from which their statistics are computed."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class SeparateColumns:
    """Numbers of rows of which each column is an array of its own. Formulas read a column by `numbers[..., column]`.

    Args:
        read: returns a column, float64 [...].

    Example:
        >>> SeparateColumns({2: np.array([1.0, 3.0])}.__getitem__)[..., 2].tolist()
        [1.0, 3.0]
    """

    def __init__(self, read: Callable[[int], Array]) -> None:
        self._read = read

    def __getitem__(self, where: tuple[EllipsisType, int]) -> Array:
        return self._read(where[1])


Numbers: TypeAlias = Array | SeparateColumns
"""The numbers of rows as formulas take them, float64 [..., columns]: `numbers[..., column]` is a column of all rows."""


class RowStates:
    """The numbers that all accumulators keep of some rows of a step, or of several steps.

    Args:
        read: returns the numbers of an accumulator by its name, float64 [..., columns].
        ranks: the number of ranks whose numbers were merged.

    Example:
        >>> states = RowStates({"span": np.array([[1.0, 3.0]])}.__getitem__)
        >>> states["span"][:, 1].tolist(), states.ranks
        ([3.0], 1)
    """

    def __init__(self, read: Callable[[str], Array], ranks: int = 1) -> None:
        self._read = read
        self.ranks = ranks

    def __getitem__(self, name: str) -> Array:
        """The numbers of the accumulator of this name, float64 [..., columns]."""
        return self._read(name)
