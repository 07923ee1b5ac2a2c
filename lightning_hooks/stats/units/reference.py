"""The measurement of units in plain torch, for every device, dtype and layout. Tests compare all faster kernels with it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Final

import torch
from torch import Tensor

from lightning_hooks.stats.units.schema import ABS_MAX, COLUMNS, ZEROS

_CHUNK: Final = 1 << 20  # elements to convert to float64 at a time, eight megabytes


def measure(tensor: Tensor, axis: int) -> Tensor:
    """The units of a tensor, float64 [units, 4] on its device, without waiting for the device.

    Args:
        tensor: real and dense, with at least one dimension.
        axis: the dimension of the units; a negative one counts from the end.

    Raises:
        IndexError: the tensor has no such dimension.

    Example:
        >>> measure(torch.tensor([[1.0, 0.0], [-3.0, 0.0]]), axis=1).tolist()
        [[-2.0, 10.0, 3.0, 0.0], [0.0, 0.0, 0.0, 2.0]]
    """
    laid_out = tensor.detach().movedim(axis, -1)
    many = laid_out.shape[-1]
    if laid_out.numel() <= _CHUNK or laid_out.ndim == 1:
        return units_of(laid_out, -1)
    # Split along the first dimension, so that `reshape` copies at most one chunk at a time.
    per_slice = laid_out.numel() // laid_out.shape[0]
    if per_slice > _CHUNK and laid_out.ndim > 2:
        return _merged(measure(each, -1) for each in laid_out.unbind(0))
    chunks = laid_out.split(max(1, _CHUNK // max(per_slice, 1)))
    return _merged(units_of(chunk.reshape(-1, many), -1) for chunk in chunks)


def units_of(tensor: Tensor, axis: int) -> Tensor:
    """As `measure`, in one piece: a compiler traces and fuses the operations. In eager mode they copy the tensor to float64."""
    wide = tensor.detach().movedim(axis, -1)
    wide = (wide.unsqueeze(0) if wide.ndim == 1 else wide.flatten(0, -2)).double()
    # A maximum over an empty dimension raises, so take the maximum over one row of zeros instead.
    magnitude = wide.abs() if wide.shape[0] else wide.new_zeros(1, wide.shape[1])
    columns = [wide.sum(0), (wide * wide).sum(0), magnitude.amax(0), (wide == 0).sum(0).double()]
    return torch.stack(columns, dim=1)


def measure_indices(indices: Tensor, units: int) -> Tensor:
    """The units of `one_hot(indices, units)`, float64 [units, 4], without computing this tensor.

    Routers often return the indices of the experts that they chose. The sum and the sum of squares of an expert are then the
    number of its tokens. Each unit has as many elements as there are indices. An index outside of [0, units) is ignored, such
    as -1 for a token without an expert.

    Args:
        indices: a tensor of an integer dtype and of any shape.
        units: the number of units.

    Example:
        >>> measure_indices(torch.tensor([[0, 2], [0, -1]]), 3).tolist()
        [[2.0, 2.0, 1.0, 2.0], [0.0, 0.0, 0.0, 4.0], [1.0, 1.0, 1.0, 3.0]]
    """
    flat = indices.detach().reshape(-1).long()
    # An extra bin counts the ignored indices. Unlike `bincount`, `index_add_` does not wait for the device.
    bins = torch.where((flat >= 0) & (flat < units), flat, units)
    counts = flat.new_zeros(units + 1).index_add_(0, bins, torch.ones_like(flat))[:units].double()
    return torch.stack([counts, counts, (counts > 0).double(), flat.numel() - counts], dim=1)


def merge(a: Tensor, b: Tensor) -> Tensor:
    """The units of the union of two disjoint sets of elements, unit by unit: all three [..., units, 4], float64."""
    merged = a + b
    merged[..., ABS_MAX] = torch.maximum(a[..., ABS_MAX], b[..., ABS_MAX])
    return merged


def zeros_units(units: int, count: float, device: torch.device) -> Tensor:
    """The units of `count` zeros each, such as the elements that a sparse tensor does not store, float64 [units, 4]."""
    out = torch.zeros(units, COLUMNS, dtype=torch.float64, device=device)
    out[:, ZEROS] = count
    return out


def _merged(parts: Iterable[Tensor]) -> Tensor:
    return reduce(merge, parts)
