"""The table of a monitor: what the accumulators of its rows keep of a step, filled by hooks, merged over ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats import kernels
from lightning_hooks.stats.accumulators import Kept
from lightning_hooks.stats.accumulators.store import PendingNumbers, StoreContext
from lightning_hooks.stats.columns import STACKED
from lightning_hooks.stats.host_copy import InHostMemory, PendingState, begin_copy, copy_now, to_device
from lightning_hooks.stats.measurement import Measurement, UnmeasurableError
from lightning_hooks.stats.metrics import MetricRows
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.processes import world_size
from lightning_hooks.stats.ranks import merge_ranks
from lightning_hooks.stats.replicas import replicas
from lightning_hooks.stats.requests import FACTOR, STOP
from lightning_hooks.stats.sections import Sections
from lightning_hooks.stats.user_statistics import UserStatistic


class RowOffsets(NamedTuple):
    """Where rows that are written together at every step begin in the state of a table.

    Args:
        moments: the offset of each row.
        histograms: the offset of the histogram of each, `NO_HISTOGRAM` for none; None where no row has one.
        is_direct: whether a kernel in host memory writes everything that these rows keep.
    """

    rows: Sequence[int]
    moments: NDArray[np.int64]
    histograms: NDArray[np.int64] | None
    is_direct: bool


class Table:
    """The numbers of every row of a step.

    The `state` is one flat tensor, whose last elements are the requests of this rank; `sections` is its layout. On a CUDA
    device nothing here waits for the device, except where a docstring says so.

    Args:
        rows: how many there are; each keeps moments.
        kept: what some rows keep besides.
        metrics: the rows that also keep a user's metric, with it.
        copied: the rows of which several ranks hold copies, as of parameters and their averaged gradients, with the first of
            the ranks that together hold the copy of this rank; None where this rank holds it alone.
        device: of the state.
        magnitudes: whether the sums of magnitudes and the underflows of rows are requested; if not, the compiled kernel writes
            NaN for the sums.
        place: of this rank in its tensor-parallel group, and the size of the group.
        alone: as of `world_size`.
        label: the tensor of a row and its module or parameter, for messages.

    Example:
        >>> table = Table(2)
        >>> table.add(0, Measurement(torch.tensor([1.0, 3.0])))
        >>> table.add(0, Measurement(torch.tensor([5.0])))
        >>> table.moments[:, 0].tolist(), table.moments[0, 1].item()
        ([3.0, 0.0], 3.0)
    """

    def __init__(
        self,
        rows: int,
        kept: Sequence[Kept] = (),
        metrics: Sequence[tuple[int, UserStatistic]] = (),
        copied: Mapping[int, int | None] | None = None,
        device: torch.device | str = "cpu",
        magnitudes: bool = True,
        place: tuple[int, int] = (0, 1),
        alone: bool = False,
        label: Callable[[int], str] = "row {}".format,
    ) -> None:
        self._alone = alone
        self._label = label
        self.magnitudes = magnitudes  # read by the compiled kernel, as `state` is
        copied = copied or {}
        context = StoreContext(device, alone, label, place[1])
        self._stores = [each.accumulator.store(each, context) for each in kept if each.accumulator.separate]
        self.stores = {store.name: store for store in self._stores}
        units: list[Tensor | None] = self.stores["units"].by_row if "units" in self.stores else []
        self.units = units  # read by the compiled kernel, as `state` is
        kept = [each for each in kept if not each.accumulator.separate]
        self.metrics = MetricRows(metrics, range(rows) if alone else copied, device)
        self.sections = Sections(rows, kept)
        self._more_than_moments = {*self.metrics.rows}.union(*(each.rows for each in kept if _is_measured(each)))
        # What only Python measures. A row may keep sums over pairs all the same: these are not measured from one tensor.
        slow = [each.rows for each in kept if _is_measured(each) and not each.accumulator.compiled]
        self._in_python = {*self.metrics.rows}.union(*slow)
        self._histograms = self.sections.index("histogram")
        self.state = self.sections.blank(device)
        self._array = self.state.numpy() if self.state.is_cpu else None  # the same memory: NumPy takes a tenth of torch's time
        self._partial: Any = None  # of a device's kernel: what hooks have measured, and is not merged into the state
        others = [row for row in range(rows) if row not in copied]
        self._replicas = replicas(copied, self.sections, device, others, place)
        self._held_in_parts = {row for row, first in copied.items() if first is not None}

    @property
    def moments(self) -> Tensor:
        """Raw moments, float64 [rows, 9]: a view of the state."""
        self._merge_partial()
        return self.sections.moments_of(self.state)

    @property
    def ranks(self) -> int:
        """How many processes merge their tables."""
        return world_size(self._alone)

    def numbers(self, name: str, row: int) -> Tensor:
        """What an accumulator keeps of a row, float64 [columns]: a view of the state."""
        section = self.sections.index(name)
        slot = None if section is None else self.sections.slot(section, row)
        if section is None or slot is None:
            raise KeyError(f"{self._label(row)} keeps no {name}")
        return self.sections.split(self.state)[section][slot]

    def hold_alone(self, row: int) -> None:
        """From now on, count what this rank measures for a row of a sharded parameter as a copy, and no part of one."""
        if row in self._held_in_parts:
            self._held_in_parts.remove(row)
            self._replicas.first.masked_fill_(self._replicas.rows == row, -1.0)

    def clear(self) -> None:
        """Make every row neutral again."""
        if self._partial is not None:
            self._partial.drop()
        self.sections.clear(self.state if self._array is None else self._array)
        if self.metrics.rows:
            self.metrics.reset()
        for store in self._stores:
            store.clear()

    def expect(self, due: Mapping[str, Collection[int]]) -> None:
        """Set which rows each store measures in the step that begins, by the name of the store."""
        for store in self._stores:
            store.due = due.get(store.name, frozenset())

    def writer(self, row: int, fallback: kernels.FallbackWriter, stored: Collection[str] = ()) -> Callable[[Tensor], None]:
        """A function that merges a tensor into a row as `add` does, but without a `Measurement`.

        Args:
            row: of the table.
            fallback: takes the tensors that cannot be written directly; all of them, where the row keeps a user's statistic or
                lies on a device without a kernel.
            stored: the names of the stores that measure the row too.

        Example:
            >>> class Fallback(kernels.FallbackWriter):
            ...     def __call__(self, row, tensor):
            ...         table.add(row, Measurement(tensor))
            >>> table, fallback = Table(1), Fallback()
            >>> fallback.direct = True
            >>> write = table.writer(0, fallback)
            >>> write(torch.tensor([1.0, 3.0]))
            >>> table.moments[0, 1].item(), fallback.calls
            (2.0, 1)
        """
        for name in stored:
            return self.stores[name].writer(row, partial(fallback, row), partial(self._unit_writer, row, fallback))
        device = kernels.on_device(self.state)
        if device is not None and row not in self._more_than_moments:
            if self._partial is None:
                self._partial = device.PartialRows(self.state)
            return kernels.direct_writer(self._partial.writer(row * MOMENTS), row, fallback)
        if not self.state.is_cpu or row in self._in_python:
            return partial(fallback, row)
        write: Callable[[Tensor], None] = kernels.host.writer(self, row, self._histogram_offset(row), fallback)
        return write

    def _unit_writer(self, row: int, fallback: kernels.FallbackWriter, axis: int) -> Callable[[Tensor], None] | None:
        """A compiled writer of a row with its units; None where there is none."""
        if not self.state.is_cpu or row in self._in_python:
            return None
        write: Callable[[Tensor], None] = kernels.host.writer(self, row, self._histogram_offset(row), fallback, axis)
        return write

    def add(self, row: int, measurement: Measurement, divided: Measurement | None = None) -> None:
        """Merge a measurement into a row: one of several calls or micro-batches of the step.

        Args:
            divided: the measurement for what is divided by the loss scale first; the same by default.
        """
        # Writers write too, so only the row itself knows whether it has elements; a neutral one merges as nothing.
        self._write(row, measurement, divided or measurement, merging=True)

    def put(self, row: int, measurement: Measurement) -> None:
        """Set a row to a measurement: the last one of the step counts."""
        self.metrics.reset(row)
        self._write(row, measurement, measurement, merging=False)

    def put_all(self, rows: Sequence[int], measurements: Sequence[Measurement]) -> list[int]:
        """Set several rows in one write for each section.

        Returns:
            The indices of those that were skipped and need `put`: rows that keep something of a user's, and tensors that cannot
            be measured.
        """
        skipped: list[int] = []
        numbers: dict[int, dict[int, Tensor]] = {}  # by section and slot
        for position, (row, measurement) in enumerate(zip(rows, measurements, strict=True)):
            if row in self._in_python:
                skipped.append(position)
                continue
            try:
                new = self._measured(row, measurement, measurement)
            except UnmeasurableError:
                skipped.append(position)
                continue
            for section, slot, value in new:
                numbers.setdefault(section, {})[slot] = value
        parts = self.sections.split(self.state)
        for section, values in numbers.items():
            part = parts[section]
            stacked = torch.stack([value.to(part.device, non_blocking=True) for value in values.values()])
            part.index_copy_(0, to_device(list(values), part.device), stacked.to(part.dtype))
        return skipped

    def offsets(self, rows: Sequence[int]) -> RowOffsets:
        """Where rows begin in the state, for `measure_all` at every step."""
        histograms = None
        offsets = [self._histogram_offset(row) for row in rows]
        if any(offset is not None for offset in offsets):
            histograms = np.array([kernels.NO_HISTOGRAM if offset is None else offset for offset in offsets], dtype=np.int64)
        is_direct = self._in_python.isdisjoint(rows)
        return RowOffsets(rows, np.array(rows, dtype=np.int64) * MOMENTS, histograms, is_direct)

    def measure_all(
        self, rows: Sequence[int] | RowOffsets, tensors: Sequence[Tensor], subtracted: Sequence[Tensor] | None = None
    ) -> list[int]:
        """Set rows to the moments of tensors that are not measured elsewhere, or of their differences from others.

        Args:
            subtracted: from each of the tensors, in float32 at least and without materializing the differences.

        Returns:
            The indices of those that were skipped and need `put`.
        """
        offsets = rows if isinstance(rows, RowOffsets) else self.offsets(rows)
        device = kernels.on_device(self.state)
        if device is not None:
            plain = [position for position, row in enumerate(offsets.rows) if row not in self._more_than_moments]
            lists = [[each[position] for position in plain] for each in (tensors, subtracted) if each is not None]
            rest = device.measure_many_into(self.state, [offsets.rows[position] * MOMENTS for position in plain], *lists)
            written = set(plain) - {plain[position] for position in rest}
            return [position for position in range(len(offsets.rows)) if position not in written]
        if not self.state.is_cpu or not offsets.is_direct:
            return list(range(len(offsets.rows)))
        skipped: list[int] = kernels.host.measure_many_into(
            self.state, offsets.moments, tensors, subtracted, offsets.histograms, self.magnitudes
        )
        return skipped

    def withdraw(self, rows: Sequence[int], unless_zero: Tensor) -> None:
        """Make rows neutral again, because their step did not happen, unless a scalar on the device is 0.

        The metrics of users are not reset.
        """
        device = self.state.device
        gone = unless_zero.to(device, non_blocking=True) > 0
        for section, (each, part) in enumerate(zip(self.sections.kept, self.sections.split(self.state), strict=True)):
            if not _is_measured(each):
                continue
            index = to_device(self.sections.slots(section, rows), device)
            part[index] = torch.where(gone, each.accumulator.neutral(device), part[index])

    def rescale(self, rows: Sequence[int], factor: Tensor) -> None:
        """Multiply the tensors behind rows, and the parts of gradients, by a factor: the loss scale changed.

        Waits for the device where some of the rows keep histograms, because whole buckets move.

        Args:
            factor: a scalar, a power of two.
        """
        self._merge_partial()
        factor = factor.to(self.state.device, torch.float64)
        rescale_sections(self.sections, self.sections.split(self.state), rows, factor)
        for store in self._stores:
            store.rescale(rows, factor)

    def exchange(self, *, stop: bool = False, factor: int = 1) -> PendingState:
        """The whole state merged over all ranks.

        Waits for the device where a row keeps a metric of a user's: those are read now, because the next step resets them.

        Args:
            stop: whether this rank requests to stop; all ranks learn whether any does.
            factor: by which this rank requests intervals to grow; all ranks learn the greatest.
        """
        self._merge_partial()
        if self.ranks == 1 and self._array is not None and not self.metrics.rows:
            return PendingState(InHostMemory(self._array), (stop, factor))
        to_host = copy_now if self.metrics.rows else begin_copy
        if self.ranks == 1:
            return PendingState(to_host(self.state), (stop, factor))
        self.state[FACTOR], self.state[STOP] = float(factor), float(stop)
        return PendingState(to_host(merge_ranks(self.state, self.sections, self._replicas)))

    def exchange_stores(self) -> dict[str, PendingNumbers]:
        """What the stores have of the step, merged over all ranks, by the name of the store."""
        pending = ((store.name, store.exchange()) for store in self._stores)
        return {name: numbers for name, numbers in pending if numbers is not None}

    def _merge_partial(self) -> None:
        if self._partial is not None:
            self._partial.merge()

    def _histogram_offset(self, row: int) -> int | None:
        if self._histograms is None:
            return None
        slot = self.sections.slot(self._histograms, row)
        return None if slot is None else self.sections.offset(self._histograms, slot)

    def _measured(self, row: int, measurement: Measurement, divided: Measurement) -> list[tuple[int, int, Tensor]]:
        """What a row keeps of a tensor: the section, the slot and the numbers of each accumulator."""
        found: list[tuple[int, int, Tensor]] = []
        # Moments come last: in host memory the pass that counts the histogram gives them too.
        for section, slot in reversed(self.sections.of_row(row)):
            accumulator = self.sections.kept[section].accumulator
            numbers = accumulator.measure(divided if accumulator.divided_first else measurement, self._label(row))
            if numbers is not None:
                found.append((section, slot, numbers))
        return found

    def _write(self, row: int, measurement: Measurement, divided: Measurement, *, merging: bool) -> None:
        new = self._measured(row, measurement, divided)
        parts = self.sections.split(self.state)
        for section, slot, numbers in new:
            numbers = numbers.to(self.state.device, non_blocking=True)
            if merging:
                both = torch.stack([parts[section][slot], numbers])
                numbers = self.sections.kept[section].accumulator.merge(both, STACKED)
            parts[section][slot] = numbers
        for store in self._stores:
            if row in store.due:
                store.add(row, measurement)
        if row in self.metrics:
            self.metrics.update(row, divided.tensor)


def rescale_sections(sections: Sections, parts: Sequence[Tensor], rows: Sequence[int], factor: Tensor | float) -> None:
    """Multiply the tensors behind rows by a factor, in place.

    Args:
        sections: of a state.
        parts: the sections of the state.
        rows: of tensors that a loss scale multiplies.
        factor: a power of two.
    """
    for section, (each, part) in enumerate(zip(sections.kept, parts, strict=True)):
        accumulator = each.accumulator
        if accumulator.always_scaled:
            part[:] = accumulator.rescale(part, factor)
        elif not accumulator.divided_first and (slots := sections.slots(section, rows)):
            index = to_device(slots, part.device)
            part[index] = accumulator.rescale(part[index], factor)


def _is_measured(kept: Kept) -> bool:
    """Whether the numbers follow from single tensors."""
    return kept.accumulator.from_one_tensor
