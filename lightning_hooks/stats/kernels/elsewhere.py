"""What the kernel of this machine does not measure: on a CUDA device Triton does where it works, all else the reference.

Triton is imported when the first tensor on such a device is seen: a run without one does not pay for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from lightning_hooks._build import VARIABLE, wanted
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
    return choose()[0] if tensor.is_cuda and not torch.compiler.is_compiling() else None


@cache
def choose() -> tuple[ModuleType | None, str]:
    """What measures on a CUDA device, and a few words on it, with the reason where it is the reference."""
    if wanted() == "reference":
        return None, f"reference ({VARIABLE}=reference)"
    if not torch.cuda.is_available():
        return None, "none (torch sees no CUDA device)"
    try:
        from lightning_hooks.stats.kernels import cuda

        # Triton builds its launcher with a C compiler, and not for every device: what fails, fails here.
        cuda.attempt(torch.device("cuda", torch.cuda.current_device()))
    except Exception as error:
        return (
            None,
            f"reference (no Triton: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__})",
        )
    return cuda, cuda.describe()
