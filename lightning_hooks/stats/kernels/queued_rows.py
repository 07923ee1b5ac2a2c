"""Partial rows whose measurements the compiled part launches: between a hook of torch and the driver runs no interpreter.

Tensors that the compiled part rejects are launched from Python: copies, the first tensor of each dtype, and threads without a
context. They take their partial rows from the same queue.

The compiled part may measure gradients and outputs *late*: it holds references to some tensors, and measures up to eight in one
launch, at the latest before anything reads the table. `late_rows` decides which rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.stats.host_copy import to_device
from lightning_hooks.stats.kernels import FallbackWriter, cuda, driver, triton_code, triton_counts, triton_merge
from lightning_hooks.stats.kernels.addresses import CODES, Found
from lightning_hooks.stats.kernels.driver import Driver
from lightning_hooks.stats.kernels.kept_tables import kept_on
from lightning_hooks.stats.kernels.late_rows import LateRows
from lightning_hooks.stats.kernels.launching import after, current_stream, handle
from lightning_hooks.stats.kernels.queued_units import QueuedUnits
from lightning_hooks.stats.kernels.triton_code import BLOCK
from lightning_hooks.stats.moments import MOMENTS, neutral

if TYPE_CHECKING:
    from lightning_hooks.stats.accumulators.store import Store

_SPAN_BYTES = 4 * 8


class QueuedRows(cuda.PartialRows):
    """Partial rows in a queue of the compiled part.

    Args:
        state: as for `PartialRows`.
        functions: of the driver that launches the kernels.
        magnitudes: as for `PartialRows`.
        label: returns the tensor of a row and its module or parameter, for messages.
    """

    def __init__(
        self, state: Tensor, functions: Driver, magnitudes: bool = True, label: Callable[[int], str] = "row {}".format
    ) -> None:
        super().__init__(state, magnitudes)
        compiled = driver.native()
        assert compiled is not None, "there is a driver without the compiled part"
        self._native = compiled
        self._kept: list[object] = [self._rows]
        self._passed: set[torch.dtype] = set()  # the dtypes whose kernel was passed to the compiled part, if there is a handle
        self._division = {"PROGRAMS": cuda._PROGRAMS, "MOST_BLOCKS": cuda._MOST_BLOCKS}
        self.queue = compiled.DeviceRows(
            self._kept,
            functions[:4],
            (functions.device_type, max(self._device_index, 0)),
            (self._address, cuda._CAPACITY),
            (BLOCK, *self._division.values()),
        )
        self._counted: set[torch.dtype] = set()  # the dtypes whose counting kernel was passed, if there is a handle
        self._label = label
        self._late = LateRows(self.queue, self._rows)
        self._overwritten: set[int] = set()  # the offsets of the rows that have no value in this step

    def direct_writer(self, offset: int) -> Callable[[Tensor], bool]:
        in_python = self.writer(offset)
        if not driver.is_used:
            return in_python
        launch = partial(self.queue.launch, offset)
        return lambda tensor: launch(tensor) or in_python(tensor)

    def counting_writer(self, in_python: Callable[[Tensor], bool], offset: int, histogram: int) -> Callable[[Tensor], bool]:
        if not driver.is_used:
            return in_python
        address = self._state.data_ptr() + histogram * self._state.element_size()
        launch = partial(self.queue.launch_counted, offset, address)

        def write(tensor: Tensor) -> bool:
            if launch(tensor):
                return True
            is_written = in_python(tensor)
            if is_written and tensor.dtype in self._passed and tensor.dtype not in self._counted:
                self._pass_counter(tensor.dtype)
            return is_written

        return write

    def row_writer(self, row: int, offset: int, fallback: FallbackWriter) -> Callable[[Tensor], None]:
        if not driver.is_used:
            return super().row_writer(row, offset, fallback)
        write: Callable[[Tensor], None] = self._native.device_writer(
            self.queue, row, offset, self, self.writer(offset), fallback
        )
        return write

    @cached_property
    def _units(self) -> QueuedUnits:
        return QueuedUnits(self.queue, self._state, self._kept)

    def unit_writer(
        self, row: int, offset: int, store: Store, in_python: Callable[[Tensor], bool], fallback: FallbackWriter
    ) -> Callable[[Tensor], None]:
        if not driver.is_used:
            return super().unit_writer(row, offset, store, in_python, fallback)

        units = self._units  # allocates memory now, and not in a hook

        def write(tensor: Tensor) -> bool:
            is_written = in_python(tensor)
            if is_written:
                units.prepare(tensor, store.axes[row])
            return is_written

        launch: Callable[[Tensor], None] = self._native.device_writer(
            self.queue, row, offset, self, write, fallback, store.by_row, store.axes
        )
        return launch

    def launch(self, offset: int, tensor: Tensor) -> bool:
        """Launch the measurement of a tensor as a writer does; False if the compiled part rejects the tensor."""
        launched: bool = self.queue.launch(offset, tensor)
        return launched

    def _measure(self, offset: int, found: Found, dtype: torch.dtype) -> bool:
        self.flush()  # the partial rows of a row keep the order of hooks
        address, size, _ = found
        stream = current_stream(self._device_index)
        launch = self._launches.get(dtype) or self._load(dtype)
        steps, programs = cuda._spans(size)
        begin = self._reserve(programs, stream)
        if begin < 0:
            return False
        launched = False
        try:
            launch(programs, stream, address, size, steps, self._address + begin * cuda._ROW_BYTES)
            launched = True
        finally:
            self.queue.settle(offset, size, begin, begin + programs, launched)
        if dtype not in self._passed:
            self._pass_kernel(dtype)
        return True

    def _reserve(self, programs: int, stream: int) -> int:
        """The index of the first reserved partial row; negative if others wait on another stream, or if there is no room."""
        begin: int = self.queue.reserve(programs, stream)
        if begin < 0 and self.queue.is_on(stream) and programs <= cuda._CAPACITY:
            self.merge()
            begin = self.queue.reserve(programs, stream)
        return begin

    def flush(self) -> None:
        if self.queue.late():
            with cuda._current(self._state):
                self.queue.flush()

    def merge(self) -> None:
        self.flush()
        spans = self.queue.spans()
        if spans:
            segments = len(spans) // _SPAN_BYTES
            with cuda._current(self._state), after(self.queue.written_on(), self._device_index):
                self._late.compare()
                if driver.is_used:
                    self._merge_from(spans, segments)
                else:
                    columns = np.frombuffer(spans, dtype=np.int64).reshape(-1, 4).T
                    cuda._merge(self._state, self._rows, *columns, merging=True)
            # Discard the partial rows only after the merge: if it raised, the next merge takes them.
            self.queue.drop(segments)
        if self._overwritten:
            # All of the row: what was measured before and after belongs to a row that is not complete.
            places = np.add.outer(np.array(sorted(self._overwritten)), np.arange(MOMENTS))
            self._state[to_device(places, self._state.device)] = neutral(1, self._state.device)

    def overwritten(self, offset: int) -> None:
        """A tensor of the row at an offset was overwritten in place after its hook and before it was measured."""
        self._overwritten.add(offset)
        warnings.warn(
            f"{self._label(offset // MOMENTS)} has no value in this step: a tensor was overwritten in place soon after its "
            "hook, which did not happen before. From now on it is measured in the hook",
            stacklevel=2,
        )

    def _merge_from(self, spans: bytes, segments: int) -> None:
        table, targets = self._native.merge_table(spans)
        on_device = kept_on(self._state.device, table)
        integers = (on_device.data_ptr(), targets, segments, self._address, self._state.data_ptr(), 1)
        cuda._launch(triton_merge.merge_rows, targets, self._state, *integers, CHUNK=triton_merge.CHUNK)

    def drop(self) -> None:
        self._overwritten.clear()
        self.queue.forget()
        self._late.decide()
        self.queue.set_late(driver.gradients_are_late, driver.outputs_are_late)
        self.queue.drop(self.queue.waiting())

    def _pass_kernel(self, dtype: torch.dtype) -> None:
        """Let the compiled part launch the kernel for a dtype. Triton has launched it, so this thread has its context."""
        constants = self._constants(dtype)
        loaded = handle(triton_code.measure_one, self._device_index, **constants)
        if loaded is not None and not self.queue.set_kernel(CODES[dtype], *loaded[:3]):
            return
        self._passed.add(dtype)
        of_eight = (
            None if loaded is None else handle(triton_code.measure_eight, self._device_index, **self._division, **constants)
        )
        if of_eight is not None:
            self.queue.set_kernel_of_eight(CODES[dtype], *of_eight[:3])
        self._kept += [loaded, of_eight]

    def _pass_counter(self, dtype: torch.dtype) -> None:
        """As `_pass_kernel`, for the kernel that counts."""
        with cuda._current(self._state):
            loaded = handle(triton_counts.count_one, self._device_index, CODE=CODES[dtype], **cuda._BLOCKS)
        if loaded is None or self.queue.set_counter(CODES[dtype], *loaded[:3]):
            self._kept.append(loaded)
            self._counted.add(dtype)
