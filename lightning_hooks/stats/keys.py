"""Numbers as integers of the same order, for reductions that must not ignore a NaN."""

from __future__ import annotations

import torch
from torch import Tensor


def keys_of(numbers: Tensor) -> Tensor:
    """Integers in the order of float64 numbers, with NaN as the greatest: a reduction of numbers may ignore a NaN."""
    bits = torch.where(numbers.isnan(), torch.nan, numbers).view(torch.int64)  # a NaN without a sign
    return bits ^ ((bits >> 63) & torch.iinfo(torch.int64).max)


def numbers_of(keys: Tensor) -> Tensor:
    """The numbers of `keys_of`."""
    return (keys ^ ((keys >> 63) & torch.iinfo(torch.int64).max)).view(torch.float64)
