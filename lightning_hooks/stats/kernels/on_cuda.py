"""Moments, histograms and comparisons of tensors on a CUDA device: by the compiled part where it works, else by Triton alone.

Importing this module raises where Triton is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from triton import knobs

from lightning_hooks.private import tried
from lightning_hooks.stats.kernels import cuda, driver
from lightning_hooks.stats.kernels.cuda import attempt, measure, measure_many
from lightning_hooks.stats.kernels.cuda_counts import count, count_many_into
from lightning_hooks.stats.kernels.cuda_counts import writer as counting_writer
from lightning_hooks.stats.kernels.cuda_units import writer as unit_writer
from lightning_hooks.stats.kernels.driver import Driver
from lightning_hooks.stats.kernels.listed import compare_many, measure_listed
from lightning_hooks.stats.kernels.queued_rows import QueuedRows

__all__ = [
    "attempt",
    "compare_many",
    "count",
    "count_many_into",
    "counting_writer",
    "driver_of",
    "measure",
    "measure_many",
    "measure_many_into",
    "partial_rows",
    "unit_writer",
]

_LOST: Final = "Triton launches the kernels for tensors of hooks, which takes about 10 µs more for each"


def measure_many_into(
    out: Tensor,
    offsets: Sequence[int] | NDArray[np.int64],
    tensors: Sequence[Tensor],
    before: Sequence[Tensor] | None = None,
    magnitudes: bool = True,
) -> list[int]:
    """As `cuda.measure_many_into`. Only tensors that the compiled part does not find are looked up in Python."""
    left = measure_listed(out, offsets, tensors, before, magnitudes)
    if not left:
        return []
    into = [int(offsets[position]) for position in left]
    others = None if before is None else [before[position] for position in left]
    rest = cuda.measure_many_into(out, into, [tensors[position] for position in left], others, magnitudes)
    return [left[position] for position in rest]


def partial_rows(state: Tensor, magnitudes: bool, label: Callable[[int], str]) -> cuda.PartialRows:
    """The partial rows of a state on a CUDA device, which the compiled part launches if that works on the device.

    Args:
        state: as for `PartialRows`.
        magnitudes: as for `PartialRows`.
        label: as for `QueuedRows`.
    """
    found = driver_of(state.get_device()) if driver.is_used else None
    return cuda.PartialRows(state, magnitudes) if found is None else QueuedRows(state, found, magnitudes, label)


@cache
def driver_of(device: int) -> Driver | None:
    """The driver, if the compiled part measures a tensor on a device as Triton does; else None.

    Waits for the device, but only the first time.
    """
    if knobs.runtime.interpret or driver.native() is None:
        return None
    with suppress(Exception), _may_wait():
        return tried("cuLaunchKernel, current_work_stream", lambda: _trial(device), _LOST)
    return None


@contextmanager
def _may_wait() -> Iterator[None]:
    """A context in which waiting for the device is no error. Torch warns when the mode is set, so it is set only if needed."""
    mode = torch.cuda.get_sync_debug_mode()
    if mode:
        torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        if mode:
            torch.cuda.set_sync_debug_mode(mode)


def _trial(device: int) -> Driver:
    """Measure a tensor by the compiled part and by Triton, and compare the bits.

    Raises:
        Exception: the compiled part did not measure the tensor, or the numbers differ.
    """
    functions = driver.cuda_driver()
    with torch.cuda.device(device), torch.inference_mode(False):
        state = torch.zeros(2, 9, dtype=torch.float64, device=device)
        rows = QueuedRows(state, functions, magnitudes=False)
        rows._rows.zero_()  # memory that is used again may hold the numbers of an earlier trial
        for stream in (torch.cuda.Stream(device), torch.cuda.current_stream(device)):
            with torch.cuda.stream(stream):
                if rows.queue.stream() != stream.cuda_stream:
                    raise RuntimeError("the exchange table tells another stream")
        tensor = torch.arange(20_000, device=device, dtype=torch.float32) - 7777.25
        rows.writer(0)(tensor)  # by Triton, which also loads the kernel
        if not rows.launch(9, tensor):
            raise RuntimeError("nothing was launched")
        rows.merge()
        in_python, direct = state.tolist()
        bits = state.view(torch.int64).tolist()
    if bits[0] != bits[1] or direct[0] != tensor.numel():
        raise RuntimeError(f"the numbers differ: {direct} instead of {in_python}")
    return functions
