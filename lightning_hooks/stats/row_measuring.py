"""Row measuring: measures tensors in Python and writes their numbers into the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.store import Store
from lightning_hooks.stats.columns import STACKED
from lightning_hooks.stats.due_rows import DueRows
from lightning_hooks.stats.host_copy import to_device
from lightning_hooks.stats.measurement import Measurement, UnmeasurableError, blame
from lightning_hooks.stats.metrics import METRICS, MetricRows
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.schema import COUNT


class RowMeasuring:
    """Measures tensors for everything that rows of a table keep, and merges the numbers into the rows or overwrites them.

    An error of one accumulator is kept until the others have measured the tensor: they may belong to other owners of the table.

    Args:
        state: the state of the table; written.
        due: the rows that are due, and the layout of what is measured.
        stores: the stores of the table, by their names.
        metrics: the metrics of the table.
        only_here: the rows that nothing else measures.
        label: returns the tensor of a row and its module or parameter, for messages.

    Attributes:
        around: surrounds the measuring of each accumulator, of which it is given the name.
    """

    def __init__(
        self,
        state: Tensor,
        due: DueRows,
        stores: Mapping[str, Store],
        metrics: MetricRows,
        only_here: Collection[int],
        label: Callable[[int], str],
    ) -> None:
        self.around: Callable[[str], AbstractContextManager[Any]] = _around_nothing
        self._state, self._due, self._stores, self._metrics = state, due, stores, metrics
        self._only_here = only_here
        self._label = label
        self._array = state.numpy() if state.is_cpu else None
        self._added: set[int] = set()  # the rows into which a tensor was merged in this step
        self._failures: list[Exception] = []

    def begin(self) -> None:
        """Begin a step, for which the table has been cleared."""
        self._added.clear()

    def add(self, row: int, measurement: Measurement, unscaled: Measurement | None = None) -> None:
        """Merge the measurement of a call or of a micro-batch into a row.

        Args:
            row: the index of the row.
            measurement: the measurement of the tensor.
            unscaled: the measurement of the tensor divided by the loss scale, for metrics and for accumulators with
                `divided_first`; `measurement` by default.

        Raises:
            UnmeasurableError: the tensor has no elements to read.
        """
        self._write(row, measurement, unscaled or measurement, merging=self._has_elements(row))

    def put(self, row: int, measurement: Measurement) -> None:
        """Overwrite a row with a measurement, so that the last one of the step counts.

        Args:
            row: the index of the row.
            measurement: the measurement of the tensor.

        Raises:
            UnmeasurableError: the tensor has no elements to read.
        """
        self._metrics.reset(row)
        self._write(row, measurement, measurement, merging=False)

    def put_all(self, rows: Sequence[int], measurements: Sequence[Measurement]) -> list[int]:
        """Overwrite several rows, with one write for each section.

        Args:
            rows: the indices of the rows.
            measurements: the measurement for each row.

        Returns:
            The positions in `rows` that were skipped and need `put`: a row that only Python measures, or a tensor that cannot
            be measured.
        """
        skipped: list[int] = []
        numbers: dict[int, dict[int, Tensor]] = {}  # by section, then by slot
        for position, (row, measurement) in enumerate(zip(rows, measurements, strict=True)):
            if row in self._only_here:
                skipped.append(position)
                continue
            try:
                new = self._measured(row, measurement, measurement)
            except UnmeasurableError:
                skipped.append(position)
                continue
            self._raise_failure()
            for section, slot, value in new:
                numbers.setdefault(section, {})[slot] = value
        arrays = self._due.arrays(self._state)
        for section, values in numbers.items():
            array = arrays[section]
            stacked = torch.stack([value.to(array.device, non_blocking=True) for value in values.values()])
            array.index_copy_(0, to_device(list(values), array.device), stacked.to(array.dtype))
        return skipped

    def _has_elements(self, row: int) -> bool:
        """Whether a tensor may have been merged into a row, by `add` or by a writer. If none was, the next one is copied."""
        if row in self._added:
            return True
        self._added.add(row)
        # A writer adds to the count; what it writes of a tensor without elements changes nothing. Reading the count on a device
        # would wait for the device.
        return self._array is None or bool(self._array[row * MOMENTS + COUNT] > 0)

    def _write(self, row: int, measurement: Measurement, unscaled: Measurement, *, merging: bool) -> None:
        new = self._measured(row, measurement, unscaled)
        arrays = self._due.arrays(self._state)
        for section, slot, numbers in new:
            numbers = numbers.to(self._state.device, non_blocking=True)
            if merging:
                both = torch.stack([arrays[section][slot], numbers])
                numbers = self._due.sections.kept[section].accumulator.merge(both, STACKED)
            arrays[section][slot] = numbers
        for store in self._stores.values():
            if row in store.due:
                store.add(row, measurement)
        if row in self._metrics:
            with self.around(METRICS):
                self._metrics.update(row, unscaled.tensor)
        self._raise_failure()

    def _measured(self, row: int, measurement: Measurement, unscaled: Measurement) -> list[tuple[int, int, Tensor]]:
        """The section, the slot and the numbers of each accumulator of a row, measured from one tensor."""
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

    def _raise_failure(self) -> None:
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
