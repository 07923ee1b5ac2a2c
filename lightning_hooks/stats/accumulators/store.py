"""Store: an accumulator's state of its own, for what is not exchanged at every step or has another size for each row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats.measurement import Measurement

Array = NDArray[np.float64]
Write = Callable[[Tensor], None]


class StoredNumbers(NamedTuple):
    """What a store has of a step.

    Args:
        numbers: those of the accumulator's columns, float64 [rows that keep it, columns].
        vectors: further numbers of rows, by row and name: float64 [units of the row].
    """

    numbers: Array
    vectors: Mapping[tuple[int, str], Array]


class PendingNumbers(Protocol):
    """What a store has of a step that has ended, perhaps still on its way from a device."""

    def finish(self, moments: Array, scale: float, scaled: Collection[int]) -> StoredNumbers:
        """The numbers; waits for the device if it has to.

        Args:
            moments: of all rows of the table, merged over ranks and without the loss scale, float64 [rows, 9].
            scale: the loss scale.
            scaled: the rows that were measured under the scale.
        """


class Store(Protocol):
    """Keeps the numbers of some rows of a table."""

    name: str
    due: Collection[int]
    """The rows that are measured in the step under way."""
    by_row: list[Tensor | None]
    """What is kept of each row of the table, which the compiled writer reads; None where nothing is kept yet."""

    def clear(self) -> None:
        """Make the rows that are due neutral again."""

    def writer(self, row: int, otherwise: Write, direct: Callable[[int], Write | None]) -> Write:
        """A function that merges a tensor into a row, moments and all else that the row keeps included.

        Args:
            row: of the table.
            otherwise: does so in Python.
            direct: gives the compiled writer of the row for an axis; None where there is none.
        """

    def add(self, row: int, measurement: Measurement) -> None:
        """Merge a measurement into a row."""

    def rescale(self, rows: Collection[int], factor: Tensor) -> None:
        """Multiply the tensors behind rows by a factor: the loss scale changed."""

    def exchange(self) -> PendingNumbers | None:
        """The numbers of the rows that are due, merged over ranks; None if none is due. Collective."""


def no_numbers(rows: int, columns: int) -> Array:
    """The numbers of rows that were not measured."""
    numbers = np.zeros((rows, columns))
    numbers.flags.writeable = False
    return numbers


class StoreContext(NamedTuple):
    """What a store needs to know of its table.

    Args:
        device: of the state.
        alone: as of `world_size`.
        label: a row in messages.
        parallel: the size of a tensor-parallel group.
    """

    device: Any
    alone: bool
    label: Callable[[int], str]
    parallel: int
