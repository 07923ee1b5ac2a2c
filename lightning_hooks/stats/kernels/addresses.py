"""The addresses of the elements of tensors on a CUDA device, for kernels whose arguments are addresses."""

from __future__ import annotations

from typing import Final, TypeAlias

import torch
from torch import Tensor, nn

from lightning_hooks.stats.kernels.triton_code import BFLOAT16, FLOAT16, FLOAT32, FLOAT64

# The dtypes that the Triton kernels measure, each with its code in the kernels.
CODES: Final = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16, torch.float64: FLOAT64}
_ALIGNED: Final = 16  # bytes: the alignment that the widest loads of a GPU need
Found: TypeAlias = tuple[int, int, Tensor]
"""The address of the elements, their number, and the tensor that owns the memory: the measured tensor itself, or a copy."""


def find(tensor: Tensor, device: int) -> Found | None:
    """The address of the elements of a tensor, which lie one after the other in any order.

    This function is called for every tensor at every step, so it makes as few calls as possible. `data_ptr` of a tensor without
    memory (sparse, or inside a transform of `torch.func`) raises, which replaces a test for such tensors.

    Args:
        tensor: a tensor with any strides; one with gaps in its memory is copied.
        device: the index of the device on which the tensor must be.

    Returns:
        None if the Triton kernels do not measure the tensor: another device or dtype, a subclass, or no memory.
    """
    kind = type(tensor)
    if (kind is not Tensor and kind is not nn.Parameter) or tensor.dtype not in CODES or tensor.get_device() != device:
        return None
    try:
        size = tensor.numel()
        if size <= 1 or not tensor.is_contiguous():
            tensor = tensor.detach()
            # Torch stores negated elements only for the imaginary part of a conjugated complex tensor, which is not contiguous
            # if it has several elements. So only the tensors of this branch need the test.
            if tensor.is_neg():
                tensor = tensor.resolve_neg()
            if not is_dense(tensor):
                tensor = tensor.contiguous()
        address = tensor.data_ptr()
        if address % _ALIGNED:
            tensor = tensor.detach().clone()
            address = tensor.data_ptr()
    except RuntimeError:
        return None
    # Autograd represents some zero gradients by tensors without memory, which no kernel can read.
    if size and not address:
        return None
    return address, size, tensor


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
