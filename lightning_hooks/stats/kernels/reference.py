"""The kernel in plain torch, correct on every device and for every dtype. Tests compare the faster kernels with this one.

All sums are computed in float64, and squared deviations in a second pass. So data with a mean of 1e4 and a deviation of 1e-2,
or magnitudes of 1e-25 and 1e20, lose no precision. Large tensors are read in chunks, so that float64 copies stay small.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_hooks.stats.moments import MOMENTS, merge_groups, neutral

_CHUNK = 1 << 20  # elements to convert to float64 at a time, eight megabytes


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
    if flat.numel() <= _CHUNK:
        return moments_of(flat, tiny)
    return merge_groups(torch.stack([moments_of(chunk, tiny) for chunk in flat.split(_CHUNK)]))


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
    wide = flat.double()
    count = flat.numel()
    low, high = torch.aminmax(wide)
    mean = wide.sum() / count
    deviation = wide - mean
    magnitude = wide.abs()
    zeros = (wide == 0).sum()
    if tiny is not None:
        # Compare magnitudes in float64, in which the subnormal numbers of narrower dtypes are normal and are not flushed to 0.
        underflow = (magnitude < tiny).sum() - zeros
    else:
        underflow = torch.zeros_like(zeros)
    return torch.stack(
        [
            torch.full_like(mean, count),
            mean,
            torch.dot(deviation, deviation),
            magnitude.sum(),
            low,
            high,
            zeros.double(),
            (count - torch.isfinite(wide).sum()).double(),
            underflow.double(),
        ]
    )
