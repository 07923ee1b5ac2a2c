"""What the kernel of this machine does not measure: on a CUDA device Triton does where it works, all else the reference.

Triton is imported when the first tensor on such a device is seen: a run without one does not pay for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from lightning_hooks import backends
from lightning_hooks.stats.kernels import reference


def measure(tensor: Tensor) -> Tensor:
    """The raw moments of one tensor, without waiting for its device.

    Args:
        tensor: real and dense, any shape, any device.

    Returns:
        float64 [9] on the tensor's device.
    """
    kernel = on_device(tensor)
    moments: Tensor = (reference if kernel is None else kernel).measure(tensor)
    return moments


def measure_many(tensors: Sequence[Tensor]) -> Tensor:
    """The raw moments of several tensors on one device.

    Returns:
        float64 [len(tensors), 9].
    """
    kernel = on_device(tensors[0]) if tensors else None
    moments: Tensor = (reference if kernel is None else kernel).measure_many(tensors)
    return moments


def on_device(tensor: Tensor) -> ModuleType | None:
    """The module `cuda` where it serves for a tensor; it writes rows of moments into tensors beside it."""
    # A compiler traces the reference, whose operations it knows.
    return choose().module if tensor.is_cuda and not torch.compiler.is_compiling() else None


@cache
def choose() -> backends.Decision:
    """What measures on a CUDA device."""
    return backends.cuda(_load)


def _load() -> tuple[ModuleType, str]:
    from lightning_hooks.stats.kernels import cuda

    # Triton builds its launcher with a C compiler, and not for every device: what fails, fails here.
    cuda.attempt(torch.device("cuda", torch.cuda.current_device()))
    return cuda, cuda.describe()
