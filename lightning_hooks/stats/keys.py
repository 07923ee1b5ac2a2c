"""Order-preserving integer keys of float64 numbers, for maxima over ranks that must propagate NaN."""

from __future__ import annotations

import torch
from torch import Tensor


def keys_of(numbers: Tensor) -> Tensor:
    """Integers int64 in the order of float64 numbers. NaN has the greatest key, so a maximum of keys propagates it.

    Example:
        >>> keys = keys_of(torch.tensor([2.0, -1.0, torch.nan], dtype=torch.float64))
        >>> keys.argsort().tolist(), numbers_of(keys).tolist()
        ([1, 0, 2], [2.0, -1.0, nan])
    """
    # Replace every NaN by one without a sign bit, because the key of a negative NaN would be the least.
    bits = torch.where(numbers.isnan(), torch.nan, numbers).view(torch.int64)
    return bits ^ ((bits >> 63) & torch.iinfo(torch.int64).max)


def numbers_of(keys: Tensor) -> Tensor:
    """The float64 numbers of keys: the inverse of `keys_of`."""
    return (keys ^ ((keys >> 63) & torch.iinfo(torch.int64).max)).view(torch.float64)
