"""Histograms on a CUDA device, counted in Triton, with the counts of `stats/histogram.py`.

A tensor from a hook takes one launch, which adds to the histogram of its row. A list of tensors takes one launch that clears
the histograms, and one that counts, for each dtype. No function waits for the device. Importing this module raises if Triton is
not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats import kernels
from lightning_hooks.stats.histogram import BUCKETS, histogram
from lightning_hooks.stats.host_copy import to_device
from lightning_hooks.stats.kernels import cuda, triton_counts
from lightning_hooks.stats.kernels.addresses import CODES, Found, find
from lightning_hooks.stats.kernels.launching import Launch, current_stream, launcher

__all__ = ["count", "count_many_into", "writer"]


def count(tensor: Tensor) -> Tensor | None:
    """The histogram of a tensor, float64 [BUCKETS] on its device; None if the Triton kernels do not measure the tensor."""
    found = find(tensor, tensor.get_device())
    if found is None:
        return None
    counts = torch.zeros(BUCKETS, dtype=torch.float64, device=tensor.device)
    if found[1]:
        with cuda._current(counts):
            _launch_one(_launcher(tensor.dtype, counts), counts, 0, found)
    return counts


def writer(measure_moments: Callable[[Tensor], bool], state: Tensor, offset: int) -> Callable[[Tensor], bool]:
    """A function that merges a tensor into a row and into its histogram, or rejects the tensor and returns False.

    Args:
        measure_moments: merges a tensor into the moments of the row, or rejects the tensor and returns False.
        state: contiguous, float64, on a CUDA device; written.
        offset: the index in `state` at which the histogram of the row begins.
    """
    device = state.get_device()

    def write(tensor: Tensor) -> bool:
        found = None if kernels.is_capturing(state.device) else find(tensor, device)
        if found is None:
            return False
        if not found[1]:
            return measure_moments(tensor)
        with cuda._current(state):
            # Load the kernel first: if that raises, or if the moments are rejected, nothing has been merged yet.
            launch = _launcher(tensor.dtype, state)
            if not measure_moments(found[2]):
                return False
            try:
                _launch_one(launch, state, offset, found)
            except Exception:
                # The moments were accepted, so the fallback would measure them twice. Count with operations of torch.
                state[offset : offset + BUCKETS] += histogram(found[2].detach())
        return True

    return write


def count_many_into(
    out: Tensor, offsets: Sequence[int] | NDArray[np.int64], tensors: Sequence[Tensor], before: Sequence[Tensor] | None = None
) -> list[int]:
    """Write the histograms of several tensors, or of differences of pairs of tensors, into a tensor.

    Args:
        out: contiguous, float64, on a CUDA device; written.
        offsets: the index in `out` at which the histogram of each tensor begins; all distinct.
        tensors: one for each offset.
        before: as for `cuda.measure_many_into`.

    Returns:
        The indices of the tensors that were skipped, as `cuda.measure_many_into` skips them.
    """
    lists, skipped = cuda.lists_of(out, tensors, before)
    if lists:
        into = np.asarray(offsets, dtype=np.int64)
        with cuda._current(out):
            for each in lists:
                each.spread()
                _count_list(out, each, into[each.positions], before is not None)
    return skipped


def _launcher(dtype: torch.dtype, state: Tensor) -> Launch:
    return launcher(triton_counts.count_one, state.get_device(), CODE=CODES[dtype], **cuda._BLOCKS)


def _launch_one(launch: Launch, state: Tensor, offset: int, found: Found) -> None:
    address, size, _ = found
    steps, programs = cuda._spans(size)
    target = state.data_ptr() + offset * state.element_size()
    launch(programs, current_stream(state.get_device()), address, size, steps, target)


def _count_list(out: Tensor, tensors: cuda.TensorList, offsets: NDArray[np.int64], paired: bool) -> None:
    first_parts, last = tensors.table()
    table, many = to_device(np.concatenate([*first_parts, offsets, last]), out.device), len(offsets)
    offsets_at = table.data_ptr() + len(first_parts) * many * table.element_size()
    cuda._launch(triton_counts.clear_counts, many, out, offsets_at, out.data_ptr(), BUCKETS=triton_counts.BUCKETS.value)
    if tensors.total:
        integers = (table.data_ptr(), many, tensors.steps, out.data_ptr())
        constants = {"CODE": tensors.code, "PAIRED": paired, **cuda._BLOCKS}
        cuda._launch(triton_counts.count_list, tensors.total, out, *integers, **constants)
