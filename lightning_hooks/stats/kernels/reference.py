"""The kernel in plain torch, correct on every device and for every dtype. Tests compare the faster kernels with this one.

All sums are computed in float64, and squared deviations in a second pass. So data with a mean of 1e4 and a deviation of 1e-2,
or magnitudes of 1e-25 and 1e20, lose no precision. Large tensors are read in chunks, so that float64 copies stay small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_hooks.stats.moments import MOMENTS, merge_groups, neutral
from lightning_hooks.tensor_kinds import has_memory

_CHUNK = 1 << 20  # elements on a device that are converted to float64 at a time, eight megabytes
_HOST_CHUNK = 1 << 17  # the same in host memory: one megabyte stays in the caches
_LEAST = 1  # the least magnitude of an integer that is not 0


def measure(tensor: Tensor) -> Tensor:
    """The raw moments of a real and dense tensor, float64 [9] on its device, without waiting for the device.

    Example:
        >>> measure(torch.tensor([1.0, 3.0]))[:3].tolist()
        [2.0, 2.0, 2.0]
    """
    flat = tensor.detach().reshape(-1)
    if flat.numel() == 0:
        return neutral(1, flat.device)[0]
    tiny = torch.finfo(flat.dtype).tiny if flat.dtype.is_floating_point else None
    chunk = _HOST_CHUNK if flat.is_cpu else _CHUNK
    if flat.numel() <= chunk:
        return moments_of(flat, tiny)
    return merge_groups(torch.stack([moments_of(part, tiny) for part in flat.split(chunk)]))


def measure_many(tensors: Sequence[Tensor]) -> Tensor:
    """The raw moments of several tensors on one device, float64 [len(tensors), 9]."""
    return (
        torch.stack([measure(tensor) for tensor in tensors])
        if tensors
        else torch.empty(0, MOMENTS, dtype=torch.float64, device="cpu")
    )


def moments_of(flat: Tensor, tiny: float | None) -> Tensor:
    """The raw moments of a tensor that is not empty, float64 [9].

    Args:
        flat: a tensor with one dimension.
        tiny: the smallest normal number of the dtype; None for an integer dtype.
    """
    wide, count = flat.double(), flat.numel()
    low, high = torch.aminmax(wide)
    mean = wide.mean()
    deviation = wide - mean
    magnitude = wide.abs()
    sums = torch.dot(deviation, deviation), magnitude.sum()
    # Only in host memory can a number be looked at without waiting for a device.
    is_readable = wide.is_cpu and not torch.compiler.is_compiling() and has_memory(wide)
    is_finite = is_readable and sums[1].item() < math.inf
    numbers = count, mean, *sums, low, high, *(_small(magnitude, tiny) if is_finite else _special(magnitude, tiny))
    if is_readable:
        return torch.tensor([float(number) for number in numbers], dtype=torch.float64, device="cpu")
    return torch.stack([each.double() if isinstance(each, Tensor) else torch.full_like(mean, each) for each in numbers])


def _small(magnitude: Tensor, tiny: float | None) -> tuple[Tensor | int, int, Tensor | int]:
    """As `_special`, of finite magnitudes in host memory, which are overwritten."""
    # Most tensors have neither zeros nor subnormal numbers, which the smallest magnitude tells.
    if magnitude.amin().item() >= (tiny or _LEAST):
        return 0, 0, 0
    # Sum numbers: counting what is not 0 takes twice as long if zeros are scattered.
    zeros = magnitude.numel() - magnitude.sign().sum()
    return zeros, 0, 0 if tiny is None else magnitude.lt_(tiny).sum() - zeros


def _special(magnitude: Tensor, tiny: float | None) -> tuple[Tensor, Tensor, Tensor | int]:
    """The numbers of zeros, of elements that are not finite, and of others below the smallest normal number of a dtype.

    Magnitudes are compared in float64, in which the subnormal numbers of narrower dtypes are normal and are not flushed to 0.
    """
    zeros = magnitude.numel() - torch.count_nonzero(magnitude)
    nonfinite = magnitude.numel() - torch.count_nonzero(magnitude < math.inf)
    return zeros, nonfinite, 0 if tiny is None else torch.count_nonzero(magnitude < tiny) - zeros
