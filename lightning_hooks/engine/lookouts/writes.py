"""Writes: how often the memory of a tensor was written to, which PyTorch counts on the host."""

from __future__ import annotations

from torch import Tensor

Writes = tuple[int, int]
"""A tensor as an object, and the number of writes to it. Two are equal if nothing has written to the tensor in between."""


def writes_of(tensor: Tensor) -> Writes:
    """The writes to a tensor. PyTorch does not count those to one that was made in inference mode.

    Example:
        >>> import torch
        >>> ones = torch.ones(2)
        >>> before = writes_of(ones)
        >>> ones.add_(1) is ones, writes_of(ones) == before
        (True, False)
    """
    return id(tensor), 0 if tensor.is_inference() else tensor._version
