"""The table of a monitor: one row of moments per row of the plan, filled by hooks, merged over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats import kernels
from lightning_hooks.stats import moments as rows_of_moments
from lightning_hooks.stats.histogram import shift
from lightning_hooks.stats.host_copy import InHostMemory, PendingState, begin_copy, copy_now, to_device
from lightning_hooks.stats.measurement import Measurement, UnmeasurableError
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.pairs import SMALL
from lightning_hooks.stats.ranks import copies, merge_ranks, world_size
from lightning_hooks.stats.sections import FACTOR, STOP, Sections
from lightning_hooks.stats.user_statistics import UserRows, UserStatistic


class RowOffsets(NamedTuple):
    """Where rows that are written together at every step begin in the state of a table.

    Args:
        moments: the offset of each row.
        histograms: the offset of the histogram of each, `NO_HISTOGRAM` for none; None where no row has one.
    """

    rows: Sequence[int]
    moments: NDArray[np.int64]
    histograms: NDArray[np.int64] | None


class Table:
    """Raw moments of every row of a step, log2 histograms and users' statistics of the rows that request them.

    The `state` is one flat tensor, whose last elements are the requests of this rank; `sections` is its layout. On a CUDA
    device nothing here waits for the device, except where a docstring says so.

    Args:
        histogram_rows: the rows that also keep a histogram.
        users: the rows that also keep a user's statistic, with it.
        copied: the rows of which several ranks hold copies, as of parameters and their averaged gradients, with the first of
            the ranks that together hold the copy of this rank; None where this rank holds it alone.
        pair_rows: the rows that also keep sums over pairs of gradients.
        magnitudes: whether the sums of magnitudes and the underflows of rows are requested; if not, the compiled kernel writes
            NaN for the sums.
        place: of this rank in its tensor-parallel group, and the size of the group.
        alone: as of `world_size`.

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
        histogram_rows: tuple[int, ...] = (),
        users: Sequence[tuple[int, UserStatistic]] = (),
        copied: Mapping[int, int | None] | None = None,
        pair_rows: tuple[int, ...] = (),
        device: torch.device | str = "cpu",
        magnitudes: bool = True,
        place: tuple[int, int] = (0, 1),
        alone: bool = False,
    ) -> None:
        self._alone = alone
        self.magnitudes = magnitudes  # read by the compiled kernel, as `state` is
        self.pair_rows = pair_rows
        copied = copied or {}
        self.users = UserRows(users, range(rows) if alone else copied, device)
        self._has_users = bool(users)
        self._histogram_index = {row: index for index, row in enumerate(histogram_rows)}
        self._pair_index = {row: index for index, row in enumerate(pair_rows)}
        self._more_than_moments = {*histogram_rows, *self.users.rows}
        functions = [row for row, _, _ in self.users.functions]
        self.sections = Sections(rows, len(histogram_rows), len(functions), len(pair_rows))
        self.state = self.sections.blank(device)
        self._array = self.state.numpy() if self.state.is_cpu else None  # the same memory: NumPy takes a tenth of torch's time
        self._partial: Any = None  # of a device's kernel: what hooks have measured, and is not merged into the state
        others = [row for row in range(rows) if row not in copied]
        self._copies = copies(copied, histogram_rows, functions, pair_rows, device, others, place)
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

    @property
    def only_moments(self) -> bool:
        """Whether no row keeps more than moments."""
        return not (self._more_than_moments or self._pair_index)

    def pair_sums(self, row: int) -> Tensor:
        """The sums over pairs of gradients that a row keeps, float64 [5]: a view of the state."""
        return self.sections.split(self.state)[3][self._pair_index[row]]

    def hold_alone(self, row: int) -> None:
        """From now on, count what this rank measures for a row of a sharded parameter as a copy, and no part of one."""
        if row in self._held_in_parts:
            self._held_in_parts.remove(row)
            self._copies.first.masked_fill_(self._copies.rows == row, -1.0)

    def clear(self) -> None:
        """Make every row neutral again."""
        if self._partial is not None:
            self._partial.drop()
        self.sections.clear(self.state if self._array is None else self._array)
        if self._has_users:
            self.users.reset()

    def writer(self, row: int, fallback: kernels.FallbackWriter) -> Callable[[Tensor], None]:
        """A function that merges a tensor into a row as `add` does, but without a `Measurement`.

        Args:
            fallback: takes the tensors that cannot be written directly; all of them, where the row keeps a user's statistic or
                lies on a device without a kernel.

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
        device = kernels.on_device(self.state)
        if device is not None and row not in self._more_than_moments:
            if self._partial is None:
                self._partial = device.PartialRows(self.state)
            return kernels.direct_writer(self._partial.writer(row * MOMENTS), row, fallback)
        if not self.state.is_cpu or row in self.users:
            return partial(fallback, row)
        write: Callable[[Tensor], None] = kernels.host.writer(self, row, self._histogram_offset(row), fallback)
        return write

    def add(self, row: int, measurement: Measurement, seen: Tensor | None = None) -> None:
        """Merge a measurement into a row: one of several calls or micro-batches of the step.

        Args:
            seen: the tensor for users' statistics; that of the measurement by default.
        """
        # Writers write too, so only the row itself knows whether it has elements; a neutral one merges as nothing.
        self._write(row, measurement, merging=True, seen=seen)

    def put(self, row: int, measurement: Measurement) -> None:
        """Set a row to a measurement: the last one of the step counts."""
        self.users.reset(row)
        self._write(row, measurement, merging=False)

    def put_all(self, rows: Sequence[int], measurements: Sequence[Measurement]) -> list[int]:
        """Set several rows in one write of all moments, and one of all histograms.

        Returns:
            The indices of those that were skipped and need `put`: rows that keep a user's statistic, and tensors that cannot be
            measured.
        """
        skipped: list[int] = []
        moments: dict[int, Tensor] = {}
        counts: dict[int, Tensor] = {}
        for position, (row, measurement) in enumerate(zip(rows, measurements, strict=True)):
            try:
                new = None if row in self.users else measurement.moments
            except UnmeasurableError:
                new = None
            if new is None:
                skipped.append(position)
                continue
            moments[row] = new
            if row in self._histogram_index:
                counts[self._histogram_index[row]] = measurement.histogram
        for part, values in zip(self.sections.split(self.state), (moments, counts), strict=False):
            if values:
                new = torch.stack([value.to(part.device, non_blocking=True) for value in values.values()])
                part.index_copy_(0, to_device(list(values), part.device), new.to(part.dtype))
        return skipped

    def offsets(self, rows: Sequence[int]) -> RowOffsets:
        """Where rows begin in the state, for `measure_all` at every step."""
        histograms = None
        if not self._histogram_index.keys().isdisjoint(rows):
            found = (self._histogram_offset(row) for row in rows)
            histograms = np.array([kernels.NO_HISTOGRAM if offset is None else offset for offset in found], dtype=np.int64)
        return RowOffsets(rows, np.array(rows, dtype=np.int64) * MOMENTS, histograms)

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
        if not self.state.is_cpu or self._has_users:
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
        moments, histograms, sums, _ = self.sections.split(self.state)
        index = to_device(rows, device)
        moments[index] = torch.where(gone, rows_of_moments.neutral(len(index), device), moments[index])
        index = to_device([self._histogram_index[row] for row in rows if row in self._histogram_index], device)
        histograms[index] = torch.where(gone, 0.0, histograms[index])
        index = to_device([index for row in rows for index in self.users.sums_of(row)], device)
        sums[index] = torch.where(gone, 0.0, sums[index])

    def rescale(self, rows: Sequence[int], factor: Tensor) -> None:
        """Multiply the tensors behind rows, and the parts of gradients, by a factor: the loss scale changed.

        Waits for the device where some of the rows keep histograms, because whole buckets move.

        Args:
            factor: a scalar, a power of two.
        """
        self._merge_partial()
        factor = factor.to(self.state.device, torch.float64)
        moments, histograms, _, pairs = self.sections.split(self.state)
        index = to_device(rows, self.state.device)
        moments[index] = rows_of_moments.rescale(moments[index], factor)
        pairs[:, SMALL] *= factor.square()
        kept = [self._histogram_index[row] for row in rows if row in self._histogram_index]
        if kept:
            histograms[kept] = shift(histograms[kept], round(float(factor.log2())))

    def exchange(self, *, stop: bool = False, factor: int = 1) -> PendingState:
        """The whole state merged over all ranks.

        Waits for the device where a row keeps a metric of a user's: those are read now, because the next step resets them.

        Args:
            stop: whether this rank requests to stop; all ranks learn whether any does.
            factor: by which this rank requests intervals to grow; all ranks learn the greatest.
        """
        self._merge_partial()
        if self.ranks == 1 and self._array is not None and not self.users.have_metrics:
            return PendingState(InHostMemory(self._array), (stop, factor))
        to_host = copy_now if self.users.have_metrics else begin_copy
        if self.ranks == 1:
            return PendingState(to_host(self.state), (stop, factor))
        self.state[FACTOR], self.state[STOP] = float(factor), float(stop)
        return PendingState(to_host(merge_ranks(self.state, self.sections, self._copies)))

    def _merge_partial(self) -> None:
        if self._partial is not None:
            self._partial.merge()

    def _histogram_offset(self, row: int) -> int | None:
        return self.sections.histogram(self._histogram_index[row]) if row in self._histogram_index else None

    def _write(self, row: int, measurement: Measurement, *, merging: bool, seen: Tensor | None = None) -> None:
        index = self._histogram_index.get(row)
        # Before the moments, which the same pass then gives.
        counts = None if index is None else measurement.histogram.to(self.state.device, non_blocking=True)
        new = measurement.moments.to(self.state.device, non_blocking=True)
        moments, histograms, sums, _ = self.sections.split(self.state)
        moments[row] = rows_of_moments.merge(moments[row], new) if merging else new
        if counts is not None:
            histograms[index] = histograms[index] + counts if merging else counts
        if row in self.users:
            self.users.fill(row, sums, measurement.tensor if seen is None else seen, merging=merging)
