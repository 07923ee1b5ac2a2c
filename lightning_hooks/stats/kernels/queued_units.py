"""What the compiled part needs to launch the units of tensors: kernels for each dtype, and memory for the parts of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_hooks.stats.kernels import cuda, cuda_units
from lightning_hooks.stats.kernels.addresses import CODES
from lightning_hooks.stats.kernels.launching import current_stream, handle


class QueuedUnits:
    """Passes memory to a queue, and the kernels for a dtype when Python has measured the first tensor of it.

    Args:
        queue: a `DeviceRows` of the compiled part.
        state: a tensor on the device.
        kept: receives what must live as long as the queue.
    """

    def __init__(self, queue: Any, state: Tensor, kept: list[object]) -> None:
        self._queue, self._state, self._kept = queue, state, kept
        self._has_kernels: dict[torch.dtype, bool] = {}  # of each dtype that was tried; False if there are no handles
        self._parts = torch.empty(0)
        self._stream = -1  # The parts were allocated on this stream.
        self._pass_parts(cuda_units.usual_numbers())

    def prepare(self, tensor: Tensor, axis: int) -> None:
        """Let the compiled part launch tensors like one that Python has measured, on the current stream."""
        split = cuda_units.split_of(tensor, axis)
        if split is None:
            return
        with cuda._current(self._state):
            if tensor.dtype not in self._has_kernels:
                self._pass_kernels(tensor.dtype)
            if self._has_kernels.get(tensor.dtype):
                self._pass_parts(split.numbers)

    def _pass_kernels(self, dtype: torch.dtype) -> None:
        device = self._state.get_device()
        loaded = [handle(kernel, device, **constants) for kernel, constants in cuda_units.kernels_of(dtype)]
        handles = [each[:3] for each in loaded if each is not None]
        are_loaded = len(handles) == len(loaded)
        # This thread may have no context; then another tensor tries again.
        if are_loaded and not self._queue.set_unit_kernels(CODES[dtype], *handles, cuda_units.division()):
            return
        self._kept += loaded
        self._has_kernels[dtype] = are_loaded

    def _pass_parts(self, numbers: int) -> None:
        """Provide memory for at least so many numbers, which only launches on the current stream may use.

        The allocator gives memory that is freed to later work on the stream on which it was allocated. So memory that is
        replaced may still be read by launches that have not run yet.
        """
        stream, present = current_stream(self._state.get_device()), self._parts.numel()
        if numbers <= present and stream == self._stream:
            return
        try:
            parts = torch.empty(max(numbers, present), dtype=torch.float64, device=self._state.device)
        except torch.OutOfMemoryError:
            # Python has measured the tensor, and can measure more of them without this memory.
            return
        # If a thread is launching with the present memory, a later tensor tries again.
        if self._queue.set_parts(parts.data_ptr(), parts.numel(), stream):
            self._parts, self._stream = parts, stream
