"""Reads of one tensor: whether all elements are finite, its range, and which elements are not finite."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_hooks.recorder.record import TensorSummary
from lightning_hooks.tensor_kinds import elements, held_part, is_dense

_WIDE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Range(NamedTuple):
    """The smallest and the largest element of a tensor; NaN if the tensor has a NaN."""

    minimum: float
    maximum: float

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.minimum) and math.isfinite(self.maximum)

    @property
    def has_nan(self) -> bool:
        return math.isnan(self.maximum)


def range_of(tensor: Tensor) -> Range | None:
    """The range of a tensor of floating-point or complex numbers; None for other tensors, and if there are no elements.

    On a GPU it waits for the device once.
    """
    values = real_values(tensor)
    if values is None:
        return None
    return Range(*torch.stack(torch.aminmax(values)).tolist())


def summary(name: str, tensor: Tensor) -> TensorSummary:
    """The numbers of a tensor; without a range if its elements cannot be read.

    Of a sharded tensor they are those that this rank holds: a record is made by one rank, for which no other waits.

    Args:
        name: what the tensor is, for the record.

    Example:
        >>> summary("input 0", torch.tensor([1.0, float("inf")])).first
        (1,)
    """
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    values = real_values(tensor)
    if values is None:
        return TensorSummary(name, shape, dtype)
    extent = Range(*torch.stack(torch.aminmax(values)).tolist())
    if extent.is_finite:
        return TensorSummary(name, shape, dtype, extent.minimum, extent.maximum, abs_min=values.abs().min().item())
    finite = values.isfinite()
    low = torch.where(finite, values, math.inf).min().item()
    high = torch.where(finite, values, -math.inf).max().item()
    has_finite = low <= high
    return TensorSummary(
        name,
        shape,
        dtype,
        low if has_finite else None,
        high if has_finite else None,
        nan=int(values.isnan().sum()),
        positive_infinite=int(values.isposinf().sum()),
        negative_infinite=int(values.isneginf().sum()),
        first=_first(finite, shape),
        abs_min=torch.where(finite, values.abs(), math.inf).min().item() if has_finite else None,
    )


def _first(finite: Tensor, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The coordinates of the first element that is not finite; None if the elements have another shape than the tensor."""
    if tuple(finite.shape) != shape:
        return None
    index = int(torch.argmin(finite.flatten().to(torch.uint8)))
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(index), shape)) if shape else ()


def real_values(tensor: Tensor) -> Tensor | None:
    """The real numbers of a tensor, of a sharded one those that this rank holds; None if there are none to read."""
    tensor = held_part(tensor)
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
        return None
    if not is_dense(tensor) or tensor.is_complex():
        found = elements(tensor)
        if found is None:
            return None
        tensor = found[0]
    tensor = tensor.detach()
    if not tensor.numel():
        return None
    # `aminmax` lacks the types of eight bits and less.
    return tensor if tensor.dtype in _WIDE else tensor.float()
