"""The table of a monitor: the numbers that all rows keep of a step. Hooks fill the table, and ranks merge theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.stats import kernels
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.store import PendingNumbers, Store, StoreContext
from lightning_hooks.stats.due_rows import DueRows
from lightning_hooks.stats.host_copy import InHostMemory, begin_copy, copy_now, to_device
from lightning_hooks.stats.kernels.writers import DirectWriter
from lightning_hooks.stats.merged_state import PendingState
from lightning_hooks.stats.metrics import MetricRows
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.processes import world_size
from lightning_hooks.stats.ranks import merge_ranks
from lightning_hooks.stats.replicas import replicas
from lightning_hooks.stats.requests import write_requests
from lightning_hooks.stats.row_measuring import RowMeasuring, is_measured
from lightning_hooks.stats.row_offsets import RowOffsets
from lightning_hooks.stats.sections import Sections, rescale_sections
from lightning_hooks.stats.user_statistics import UserStatistic


class Table:
    """The numbers of every row of a step.

    The `state` is one flat float64 tensor; `sections` is its layout. On a CUDA device no method waits for the device, unless
    its docstring says so.

    Args:
        rows: the number of rows; each keeps moments.
        kept: the further accumulators, each with the rows that keep it.
        metrics: the rows that also keep a `torchmetrics.Metric` of the user, each with its statistic.
        copied: the rows of which several ranks hold copies, such as those of parameters and of their averaged gradients. A copy
            may be sharded over several ranks: the value is the first of the ranks that share the copy of this rank, or None if
            this rank holds a whole copy.
        device: the device of the state.
        magnitudes: whether a statistic of the sums of magnitudes or of underflow is requested; if not, the compiled kernel
            and the one in Triton write NaN for the sums of magnitudes, and the one in Triton also for underflow.
        tensor_parallel: the index of this rank in its tensor-parallel group, and the size of the group.
        alone: whether the table is not merged over ranks; see `world_size`.
        label: returns the tensor of a row and its module or parameter, for messages.
        owners: the number of owners of the table, each of which has requests in the exchange.

    Attributes:
        measuring: measures tensors in Python and writes their numbers into rows.

    Example:
        >>> from lightning_hooks.stats.measurement import Measurement
        >>> table = Table(2)
        >>> table.measuring.add(0, Measurement(torch.tensor([1.0, 3.0])))
        >>> table.measuring.add(0, Measurement(torch.tensor([5.0])))
        >>> table.moments[:, 0].tolist(), table.moments[0, 1].item()
        ([3.0, 0.0], 3.0)
    """

    def __init__(
        self,
        rows: int,
        kept: Sequence[AccumulatorRows] = (),
        metrics: Sequence[tuple[int, UserStatistic]] = (),
        copied: Mapping[int, int | None] | None = None,
        device: torch.device | str = "cpu",
        magnitudes: bool = True,
        tensor_parallel: tuple[int, int] = (0, 1),
        alone: bool = False,
        label: Callable[[int], str] = "row {}".format,
        owners: int = 1,
    ) -> None:
        self._alone = alone
        self._label = label
        # The compiled writer reads `magnitudes`, `units` and `state` by these names.
        self.magnitudes = magnitudes
        copied = copied or {}
        context = StoreContext(device, alone, label, tensor_parallel[1])
        self.stores = {e.accumulator.name: e.accumulator.store(e, context) for e in kept if e.accumulator.separate}
        units: list[Tensor | None] = self.stores["units"].by_row if "units" in self.stores else []
        self.units = units
        kept = [each for each in kept if not each.accumulator.separate]
        self.metrics = MetricRows(metrics, range(rows) if alone else copied, device)
        self.sections = Sections(rows, kept, owners)
        self._due = DueRows(self.sections)
        # Only Python measures the rows of an accumulator that is not compiled. Sums over pairs do not count: the monitor writes
        # them, so a compiled writer still serves their rows.
        not_compiled = [each.rows for each in kept if is_measured(each) and not each.accumulator.compiled]
        self._python_rows = {*self.metrics.rows}.union(*not_compiled)
        self.state = self.sections.blank(device)
        # A NumPy array with the memory of the state: clearing it takes a tenth of the time that torch takes.
        self._array = self.state.numpy() if self.state.is_cpu else None
        # On a CUDA device: the `PartialRows` that hooks have measured and that are not merged into the state yet.
        self._partial: Any = None
        other_rows = [row for row in range(rows) if row not in copied]
        self._replicas = replicas(copied, self.sections, device, other_rows, tensor_parallel)
        self._sharded_rows = {row for row, first in copied.items() if first is not None}
        self.measuring = RowMeasuring(self.state, self._due, self.stores, self.metrics, self._python_rows, label)

    @property
    def moments(self) -> Tensor:
        """Raw moments, float64 [rows, 9]: a view of the state."""
        self._merge_partial()
        return self.sections.moments_of(self.state)

    @property
    def ranks(self) -> int:
        """The number of ranks whose tables are merged; 1 for a table that is `alone`."""
        return world_size(self._alone)

    def numbers(self, name: str, row: int) -> Tensor:
        """The numbers of an accumulator and a row, float64 [columns]: a view of the state.

        Args:
            name: the name of an accumulator that is not `separate`.
            row: the index of the row.

        Raises:
            KeyError: the row does not keep the accumulator.
        """
        span = self.sections.span(name, row)
        if span is None:
            raise KeyError(f"{self._label(row)} keeps no {name}")
        return self.state[span]

    def rows_of(self, name: str) -> Sequence[int]:
        """The rows that keep the accumulator with this name; KeyError if there are none."""
        section = self.sections.index(name)
        return self.stores[name].rows if section is None else self.sections.kept[section].rows

    def hold_alone(self, row: int) -> None:
        """From now on, count the measurements of this rank for a row of a sharded parameter as a whole copy, not as a shard."""
        if row in self._sharded_rows:
            self._sharded_rows.remove(row)
            self._replicas.first.masked_fill_(self._replicas.rows == row, -1.0)

    def clear(self) -> None:
        """Reset every row, metric and store to the numbers of no elements."""
        self.measuring.begin()
        if self._partial is not None:
            self._partial.drop()
        current = self._due.sections
        current.clear(self.state[: current.size] if self._array is None else self._array[: current.size])
        if self.metrics.rows:
            self.metrics.reset()
        for store in self.stores.values():
            store.clear()

    def expect(self, due: Mapping[str, Collection[int]]) -> None:
        """Set the rows of each accumulator on request that are measured in the step that begins, by its name; none by default.

        Before the first call all rows are measured, except those of stores. Call `clear` next: the rest of the state is not
        reset, exchanged or copied.
        """
        self._due.set(due)
        for store in self.stores.values():
            store.due = due.get(store.name, frozenset())

    def writer(
        self, row: int, fallback: kernels.FallbackWriter, on_request: Collection[str] | None = None
    ) -> Callable[[Tensor], None]:
        """A function that merges a tensor into a row as `RowMeasuring.add` does, but without a `Measurement`.

        Args:
            row: the index of the row.
            fallback: takes the tensors that cannot be written directly. Takes all tensors if the row keeps a statistic of the
                user, or lies on a device without a kernel.
            on_request: the names of the accumulators on request that also measure the row. Default: those that keep the row,
                without stores.

        Example:
            >>> from lightning_hooks.stats.measurement import Measurement
            >>> class Fallback(kernels.FallbackWriter):
            ...     def __call__(self, row, tensor):
            ...         table.measuring.add(row, Measurement(tensor))
            >>> table, fallback = Table(1), Fallback()
            >>> fallback.direct = True
            >>> write = table.writer(0, fallback)
            >>> write(torch.tensor([1.0, 3.0]))
            >>> table.moments[0, 1].item(), fallback.calls
            (2.0, 1)
        """
        offset = self.sections.start("histogram", row) if on_request is None or "histogram" in on_request else None
        for name in self.stores.keys() & (on_request or ()):
            return self._unit_writer(self.stores[name], row, fallback, offset)
        device = kernels.on_device(self.state)
        if device is not None and row not in self._python_rows:
            if offset is not None:
                return DirectWriter(self._device_writer(device, row, offset), row, fallback)
            write: Callable[[Tensor], None] = self._partial_on(device).row_writer(row, row * MOMENTS, fallback)
            return write
        if not self.state.is_cpu or row in self._python_rows:
            return partial(fallback, row)
        return kernels.host.writer(self, row, offset, fallback) or partial(fallback, row)

    def address(self, row: int) -> int | None:
        """The address of the moments of a row, for kernels that merge into them; None if only Python measures the row."""
        return None if row in self._python_rows else self.state.data_ptr() + row * MOMENTS * self.state.itemsize

    def _unit_writer(
        self, store: Store, row: int, fallback: kernels.FallbackWriter, offset: int | None
    ) -> Callable[[Tensor], None]:
        """As `writer`, for a row that a store also measures; `offset` is that of its histogram."""
        device = kernels.on_device(self.state)
        if device is None or row in self._python_rows:
            return store.writer(row, partial(fallback, row), partial(self._host_unit_writer, row, fallback, offset))
        in_python = device.unit_writer(self._device_writer(device, row, offset), store.by_row, store.axes, row)
        if offset is not None:
            return DirectWriter(in_python, row, fallback)
        write: Callable[[Tensor], None] = self._partial_on(device).unit_writer(row, row * MOMENTS, store, in_python, fallback)
        return write

    def _host_unit_writer(
        self, row: int, fallback: kernels.FallbackWriter, offset: int | None, axis: int
    ) -> Callable[[Tensor], None] | None:
        """The compiled writer of a row in host memory and its units along `axis`; None if Python must measure the row."""
        if not self.state.is_cpu or row in self._python_rows:
            return None
        write: Callable[[Tensor], None] | None = kernels.host.writer(self, row, offset, fallback, axis)
        return write

    def _device_writer(self, device: ModuleType, row: int, offset: int | None) -> Callable[[Tensor], bool]:
        """A function that merges a tensor into the moments of a row, and into its histogram, which begins at an offset."""
        partial_rows, at = self._partial_on(device), row * MOMENTS
        write: Callable[[Tensor], bool] = partial_rows.direct_writer(at)
        if offset is not None:
            write = partial_rows.counting_writer(device.counting_writer(write, self.state, offset), at, offset)
        return write

    def offsets(self, rows: Sequence[int], counted: Collection[int] | None = None) -> RowOffsets:
        """The offsets of rows in the state. Compute them once, and pass them to `measure_all` at every step of the same kind.

        Args:
            rows: the indices of the rows.
            counted: the rows whose histograms are due in such a step; default: those of the current step.
        """
        counted = self._due.of("histogram") if counted is None else counted
        histograms = [self.sections.start("histogram", row) if row in counted else None for row in rows]
        return RowOffsets.of(rows, histograms, self._python_rows.isdisjoint(rows))

    def measure_all(
        self, rows: Sequence[int] | RowOffsets, tensors: Sequence[Tensor], subtracted: Sequence[Tensor] | None = None
    ) -> list[int]:
        """Overwrite rows with the moments and histograms of tensors, or of the differences of pairs of tensors.

        Args:
            rows: the indices of the rows, or their offsets.
            tensors: one for each row.
            subtracted: a tensor to subtract from each of `tensors`, in float32 at least. No tensor is allocated for a
                difference.

        Returns:
            The positions in `rows` that were skipped and need `RowMeasuring.put`.
        """
        self.flush()
        offsets = rows if isinstance(rows, RowOffsets) else self.offsets(rows)
        device = kernels.on_device(self.state)
        if device is not None:
            return self._measure_all_on(device, offsets, tensors, subtracted)
        if not self.state.is_cpu or not offsets.is_direct:
            return list(range(len(offsets.rows)))
        skipped: list[int] = kernels.host.measure_many_into(
            self.state, offsets.moments, tensors, subtracted, offsets.histograms, self.magnitudes
        )
        return skipped

    def put_moments(self, row: int, moments: Tensor) -> None:
        """Overwrite a row that keeps nothing else with moments, float64 [9] on any device."""
        start = row * MOMENTS
        self.state[start : start + MOMENTS] = moments.to(self.state.device, non_blocking=True)

    def _measure_all_on(
        self, device: ModuleType, offsets: RowOffsets, tensors: Sequence[Tensor], subtracted: Sequence[Tensor] | None
    ) -> list[int]:
        """`measure_all` on a device that a kernel serves."""
        if offsets.is_direct and offsets.histograms is None:
            skipped: list[int] = device.measure_many_into(self.state, offsets.moments, tensors, subtracted, self.magnitudes)
            return skipped

        def chosen(positions: Sequence[int]) -> tuple[Sequence[Tensor], Sequence[Tensor] | None]:
            if len(positions) == len(tensors):
                return tensors, subtracted
            less = None if subtracted is None else [subtracted[position] for position in positions]
            return [tensors[position] for position in positions], less

        positions = [i for i, row in enumerate(offsets.rows) if row not in self._python_rows]
        left = set(range(len(offsets.rows))).difference(positions)
        rest = device.measure_many_into(self.state, offsets.moments[positions], *chosen(positions), self.magnitudes)
        left.update(positions[i] for i in rest)
        if offsets.histograms is not None:
            counted = [i for i in positions if i not in left and offsets.histograms[i] != kernels.NO_HISTOGRAM]
            rest = device.count_many_into(self.state, offsets.histograms[counted], *chosen(counted))
            left.update(counted[i] for i in rest)
        return sorted(left)

    def withdraw(self, rows: Sequence[int], unless_zero: Tensor) -> None:
        """Reset rows to the numbers of no elements if a scalar is not 0, because the optimizer skipped its step.

        The metrics of users are not reset.

        Args:
            rows: the indices of the rows.
            unless_zero: a scalar that is at least 0, on any device, for example the number of infinite gradients.
        """
        self.flush()
        device = self.state.device
        is_withdrawn = unless_zero.to(device, non_blocking=True) > 0
        for section, (each, array) in enumerate(zip(self._due.sections.kept, self._due.arrays(self.state), strict=True)):
            if not is_measured(each):
                continue
            index = to_device(self.sections.slots(section, rows), device)
            array[index] = torch.where(is_withdrawn, each.accumulator.neutral(device), array[index])

    def rescale(self, rows: Sequence[int], factor: Tensor) -> None:
        """Rescale rows as if their tensors had been multiplied by a factor, because the loss scale changed within the step.

        Sums over pairs of gradients are rescaled for every row.

        Args:
            rows: the indices of rows whose tensors the loss scale multiplies.
            factor: a scalar on any device, a power of two.
        """
        self._merge_partial()
        factor = factor.to(self.state.device, torch.float64)
        rescale_sections(self._due.sections, self._due.arrays(self.state), rows, factor)
        for store in self.stores.values():
            store.rescale(rows, factor)

    def exchange(self, *, stop: Sequence[bool] = (), factor: Sequence[int] = (), facts: int = 0) -> PendingState:
        """The current part of the state merged over all ranks, which must all call this method at the same step.

        If a row keeps a metric of the user, this waits for the device: metrics are read now, because the next step resets them.

        Args:
            stop: for each owner, whether this rank requests that it stops; by default for none. The result joins all ranks.
            factor: for each owner, the factor by which this rank requests its intervals to grow; by default 1. The result has
                the greatest ones.
            facts: the checksum of the facts of the step. The result says whether the checksums of the ranks differ.
        """
        self._merge_partial()
        sections, size = self._due.sections, self._due.sections.size
        own = tuple(stop) or (False,) * sections.owners, tuple(factor) or (1,) * sections.owners
        if self.ranks == 1 and self._array is not None and not self.metrics.rows:
            return PendingState(InHostMemory(self._array[:size]), sections, own)
        to_host = copy_now if self.metrics.rows else begin_copy
        if self.ranks == 1:
            return PendingState(to_host(self.state[:size]), sections, own)
        write_requests(self.state[sections.requests], *own, facts)
        return PendingState(to_host(merge_ranks(self.state[:size], sections, self._replicas.of_sections(sections))), sections)

    def exchange_stores(self) -> dict[str, PendingNumbers]:
        """The numbers of the stores, merged over all ranks, by the name of the store. All ranks must call this method."""
        pending = ((store.name, store.exchange()) for store in self.stores.values())
        return {name: numbers for name, numbers in pending if numbers is not None}

    def _partial_on(self, device: ModuleType) -> Any:
        """The partial rows of this table, on the device that a kernel serves."""
        if self._partial is None:
            self._partial = device.partial_rows(self.state, self.magnitudes, self._label)
        return self._partial

    def flush(self) -> None:
        """Measure the tensors of hooks that a device has not measured yet, and release them."""
        if self._partial is not None:
            self._partial.flush()

    def _merge_partial(self) -> None:
        if self._partial is not None:
            self._partial.merge()
