"""The single-pass measurement of a tensor: the seam behind which the kernels stand.

In the memory of this machine the compiled kernel serves where it was built and loads, the one in NumPy otherwise; on a CUDA
device Triton where it works; for all else the reference in plain torch. All give the same numbers. The environment variable
LIGHTNING_HOOKS_KERNEL chooses, see `lightning_hooks._build`: with `reference` nothing compiled serves anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final

from torch import Tensor

from lightning_hooks._build import VARIABLE, wanted
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.stats.kernels import arrays, elsewhere, tensors
from lightning_hooks.stats.kernels.elsewhere import on_device

__all__ = ["NOWHERE", "VARIABLE", "Way", "compiled", "host", "in_use", "in_use_on_cuda", "measure", "measure_many", "on_device"]


def _choose() -> tuple[ModuleType | None, str]:
    choice = wanted()
    if choice == "reference":
        return None, f"numpy ({VARIABLE}=reference)"
    try:
        from lightning_hooks.stats.kernels import native
    except ImportError as error:
        if choice == "native":
            raise UnsupportedError(
                f"{VARIABLE}=native, but the compiled kernel is not there: {error}. It is built when the package is installed "
                "where a C++ compiler is found; unset the variable to go on with the kernel in NumPy"
            ) from error
        return None, f"numpy (no compiled kernel: {error})"
    return native, native.describe()


NOWHERE: Final = -1  # in the place of a histogram that is not kept
compiled: ModuleType | None  # the module `native` where it serves
compiled, _IN_USE = _choose()
host: ModuleType = arrays if compiled is None else compiled  # measures in the memory of this machine
if TYPE_CHECKING:
    from lightning_hooks.stats.kernels.arrays import Way
else:
    Way = host.Way


def measure(tensor: Tensor) -> Tensor:
    """The raw moments of one tensor, float64 [9] on its device, which is not waited for.

    Args:
        tensor: real and dense, any shape, any device.

    Example:
        >>> import torch
        >>> measure(torch.tensor([1.0, 3.0]))[:3].tolist()
        [2.0, 2.0, 2.0]
    """
    return tensors.measure(host, tensor)


def measure_many(several: Sequence[Tensor]) -> Tensor:
    """The raw moments of several tensors on one device, float64 [len(several), 9]."""
    return tensors.measure_many(host, several)


def in_use() -> str:
    """Which kernel measures tensors in the memory of this machine, and why not the compiled one where it does not.

    Example:
        >>> in_use().split()[0] in ("native", "numpy")
        True
    """
    return _IN_USE


def in_use_on_cuda() -> str:
    """Which kernel measures tensors on a CUDA device, and why not Triton where it does not.

    Example:
        >>> in_use_on_cuda().split()[0] in ("triton", "reference", "none")
        True
    """
    return elsewhere.choose()[1]
