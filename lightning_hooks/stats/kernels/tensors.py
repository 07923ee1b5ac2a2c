"""Measurements as tensors, from a kernel of this machine that gives them as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from lightning_hooks.stats.kernels import elsewhere
from lightning_hooks.stats.moments import MOMENTS


def measure(kernel: ModuleType, tensor: Tensor) -> Tensor:
    """The raw moments of one tensor.

    Args:
        kernel: measures what lies in the memory of this machine: `native` or `arrays`.
        tensor: real and dense, any shape, any device.

    Returns:
        float64 [9] on the tensor's device.
    """
    # A compiler traces plain torch, whose operations it knows.
    moments = None if torch.compiler.is_compiling() else kernel.read(tensor)
    return elsewhere.measure(tensor) if moments is None else _as_tensor(moments)


def measure_many(kernel: ModuleType, tensors: Sequence[Tensor]) -> Tensor:
    """The raw moments of several tensors on one device, read in one call.

    Args:
        kernel: as in `measure`.
        tensors: as in `measure`.

    Returns:
        float64 [len(tensors), 9].
    """
    found = [None] if torch.compiler.is_compiling() else kernel.read_many(tensors)
    rows = [moments for moments in found if moments is not None]
    if len(rows) == len(tensors):
        return _as_tensor(b"".join(rows)).view(-1, MOMENTS) if rows else torch.empty(0, MOMENTS, dtype=torch.float64)
    if not rows:
        return elsewhere.measure_many(tensors)
    return torch.stack([measure(kernel, tensor) for tensor in tensors])


def _as_tensor(numbers: bytes) -> Tensor:
    return torch.frombuffer(bytearray(numbers), dtype=torch.float64)
