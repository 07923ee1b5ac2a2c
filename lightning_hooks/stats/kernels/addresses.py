"""Where the elements of a tensor on a CUDA device lie, for kernels that get addresses."""

from __future__ import annotations

from typing import Final, TypeAlias

import torch
from torch import Tensor, nn

from lightning_hooks.stats.kernels.triton_code import BFLOAT16, FLOAT16, FLOAT32, FLOAT64

# The dtypes that are measured.
CODES: Final = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16, torch.float64: FLOAT64}
_ALIGNED: Final = 16  # bytes, for wide loads
Found: TypeAlias = tuple[int, int, Tensor]
"""The address of the elements of a tensor, their number, and what keeps them there: the tensor itself, or a copy."""


def find(tensor: Tensor, device: int) -> Found | None:
    """Where the elements of a tensor lie one after the other, in any order; None for a tensor that is not measured here.

    This is called for every tensor at every step, so it asks as little as will do. A tensor without memory (sparse, inside a
    transform of `torch.func`) raises when it is asked for its address.

    Args:
        device: the index of the device on which it must be.
    """
    kind = type(tensor)
    if (kind is not Tensor and kind is not nn.Parameter) or tensor.dtype not in CODES or tensor.get_device() != device:
        return None
    try:
        size = tensor.numel()
        if size <= 1 or not tensor.is_contiguous():
            tensor = tensor.detach()
            if tensor.is_neg():  # a part of complex numbers, so not contiguous
                tensor = tensor.resolve_neg()
            if not _is_dense(tensor):
                tensor = tensor.contiguous()
        address = tensor.data_ptr()
        if address % _ALIGNED:
            tensor = tensor.detach().clone()
            address = tensor.data_ptr()
    except RuntimeError:
        return None
    if size and not address:  # zeros of autograd
        return None
    return address, size, tensor


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor is a permutation of a contiguous one."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
