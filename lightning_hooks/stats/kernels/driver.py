"""The driver of CUDA devices, whose functions the compiled part calls by their addresses, without the interpreter.

The compiled part launches the same kernels as Triton does, with the same arguments, on the same stream. `on_cuda.driver_of`
tries that on a device before it is used; where it does not work, Triton launches all kernels.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from types import ModuleType
from typing import Final, NamedTuple

import torch

CUDA: Final = 2  # the number by which DLPack names CUDA devices

is_used = True
"""Whether kernels are launched without the interpreter. Benchmarks set this to False in some steps to compare the two ways."""

gradients_are_late = True
"""Whether gradients of outputs may be measured up to eight hooks later, several in one launch. Read when a step begins."""
outputs_are_late = False
"""As `gradients_are_late`, for outputs."""


class Driver(NamedTuple):
    """The addresses of functions of the driver.

    Args:
        launch: `cuLaunchKernel`.
        context: `cuCtxGetCurrent`.
        is_capturing: `cuStreamIsCapturing`.
        stream: a function for the current stream; 0 for that of torch's DLPack exchange table.
        device_type: the type of the devices, as DLPack numbers it.
    """

    launch: int
    context: int
    is_capturing: int
    stream: int = 0
    device_type: int = CUDA


def native() -> ModuleType | None:
    """The compiled part, if it measures tensors in this process, and was built from sources that launch units."""
    from lightning_hooks.stats import kernels

    if kernels.host is kernels.no_kernel:
        return None
    from lightning_hooks.backends import _native

    return _native if hasattr(getattr(_native, "DeviceRows", None), "set_unit_kernels") else None


@cache
def cuda_driver() -> Driver:
    """The functions of CUDA's driver.

    Raises:
        OSError: the library is not found.
        RuntimeError: torch was built for other devices.
    """
    if torch.version.cuda is None:
        raise RuntimeError("torch was not built for CUDA")
    # Triton and torch have loaded the library already, so this is the same one.
    library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    names = ("cuLaunchKernel", "cuCtxGetCurrent", "cuStreamIsCapturing")
    addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names]
    if None in addresses:
        raise OSError("a function of the driver has no address")
    return Driver(*(int(address or 0) for address in addresses))
