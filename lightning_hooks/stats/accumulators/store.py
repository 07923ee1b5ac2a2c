"""The interface of stores: numbers of an accumulator that are kept outside of the table's state.

A store serves numbers that are not exchanged at every step, or whose size differs from row to row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats.measurement import Measurement

Array = NDArray[np.float64]
Write = Callable[[Tensor], None]


class StoredNumbers(NamedTuple):
    """The numbers of a finished step from a store.

    Args:
        numbers: the columns of the accumulator, float64 [rows that keep the accumulator, columns].
        vectors: further numbers of rows, by row and name, each float64 [units of the row].
    """

    numbers: Array
    vectors: Mapping[tuple[int, str], Array]


class PendingNumbers(Protocol):
    """The numbers of a finished step, whose copy from the device may not be complete yet."""

    def finish(self, moments: Array, scale: float, scaled: Collection[int]) -> StoredNumbers:
        """The numbers. Waits for the device if the copy is not complete.

        Args:
            moments: the moments of all rows of the table, merged over ranks and divided by the loss scale, float64 [rows, 9].
            scale: the loss scale.
            scaled: the rows whose tensors were multiplied by the loss scale.
        """


class Store(Protocol):
    """Keeps the numbers of some rows of a table, which an accumulator with `separate=True` makes with `store`."""

    name: str
    """The name of the accumulator."""
    rows: tuple[int, ...]
    """The rows of the table that are kept."""
    due: Collection[int]
    """The rows that are measured in the current step; `Table.expect` sets them."""
    by_row: list[Tensor | None]
    """The numbers of each row of the table, by row; None before the first tensor. The compiled writer reads this list."""
    axes: dict[int, int]
    """The dimension of the units of each row that had a tensor. A writer on a device reads this dictionary."""

    def clear(self) -> None:
        """Reset the rows in `due` to the numbers of no elements."""

    def writer(self, row: int, fallback: Write, compiled_writer: Callable[[int], Write | None]) -> Write:
        """A function that merges a tensor into everything that a row keeps: the moments and other sections, and this store.

        Args:
            row: the index of the row in the table.
            fallback: merges a tensor in Python.
            compiled_writer: returns the compiled writer of the row for the dimension of the units; None if none serves the row.
        """

    def add(self, row: int, measurement: Measurement) -> None:
        """Merge a measurement into the numbers of a row."""

    def rescale(self, rows: Collection[int], factor: Tensor) -> None:
        """Rescale the numbers of rows as if their tensors had been multiplied by a factor, because the loss scale changed."""

    def exchange(self) -> PendingNumbers | None:
        """The numbers of the rows in `due`, merged over ranks; None if `due` is empty. All ranks must call this method."""


@lru_cache(maxsize=64)
def no_numbers(rows: int, columns: int) -> Array:
    """The numbers of rows that were not measured: read-only zeros, float64 [rows, columns].

    Example:
        >>> no_numbers(1, 2).tolist()
        [[0.0, 0.0]]
    """
    zeros: Array = np.broadcast_to(np.float64(0.0), (rows, columns))  # one element in memory
    return zeros


class StoreContext(NamedTuple):
    """What a store needs from its table.

    Args:
        device: the device of the table's state.
        alone: whether the table is not merged over ranks; see `world_size`.
        label: the tensor of a row and its module or parameter, for messages.
        parallel: the number of ranks in a tensor-parallel group; 1 without tensor parallelism.
    """

    device: Any
    alone: bool
    label: Callable[[int], str]
    parallel: int
