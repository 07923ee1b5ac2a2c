"""Row measuring: measures a tensor in Python for everything that a row of a table keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.due_rows import DueRows
from lightning_hooks.stats.measurement import Measurement, UnmeasurableError, blame


class RowMeasuring:
    """Measures tensors for the accumulators of rows.

    An error of one accumulator is kept until the others have measured the tensor: they may belong to other owners of the table.

    Args:
        due: the rows that are due, and the layout of what is measured.
        label: returns the tensor of a row and its module or parameter, for messages.

    Attributes:
        around: surrounds the measuring of each accumulator, of which it is given the name.
    """

    def __init__(self, due: DueRows, label: Callable[[int], str]) -> None:
        self.around: Callable[[str], AbstractContextManager[Any]] = _around_nothing
        self._due = due
        self._label = label
        self._failures: list[Exception] = []

    def measured(self, row: int, measurement: Measurement, unscaled: Measurement) -> list[tuple[int, int, Tensor]]:
        """The section, the slot and the numbers of each accumulator of a row, measured from one tensor.

        Args:
            row: the index of the row.
            measurement: the measurement of the tensor.
            unscaled: the measurement of the tensor divided by the loss scale, for accumulators with `divided_first`.

        Raises:
            UnmeasurableError: the tensor has no elements to read.
        """
        measured: list[tuple[int, int, Tensor]] = []
        # Measure the moments last: in host memory, the pass that counts the histogram computes the moments too.
        for section, slot in reversed(self._due.sections.of_row(row)):
            accumulator = self._due.sections.kept[section].accumulator
            if not self._due.has(accumulator, row):
                continue
            try:
                with self.around(accumulator.name):
                    numbers = accumulator.measure(unscaled if accumulator.divided_first else measurement, self._label(row))
            except UnmeasurableError:
                raise
            except Exception as error:
                self._failures.append(blame(error, accumulator.name))
                continue
            if numbers is not None:
                measured.append((section, slot, numbers))
        return measured

    def raise_failure(self) -> None:
        """Raise the first error of an accumulator since the last call."""
        failures, self._failures = self._failures, []
        if failures:
            raise failures[0]


def is_measured(kept: AccumulatorRows) -> bool:
    """Whether the numbers of an accumulator are measured from single tensors."""
    return kept.accumulator.from_one_tensor


def _around_nothing(name: str) -> AbstractContextManager[Any]:
    """What surrounds measuring by default: nothing."""
    return nullcontext()
