"""The single-pass measurement of a tensor: the seam behind which the kernels stand.

In host memory the compiled kernel serves or the one in NumPy; on a CUDA device Triton where it works; for all else the
reference in plain torch. All give the same numbers. `lightning_hooks.backends` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final

from torch import Tensor

from lightning_hooks import backends
from lightning_hooks.stats import schema
from lightning_hooks.stats.kernels import arrays, elsewhere, tensors
from lightning_hooks.stats.kernels.elsewhere import on_device

__all__ = ["NOWHERE", "Way", "compiled", "host", "in_use", "in_use_on_cuda", "measure", "measure_many", "on_device"]

NOWHERE: Final = -1  # in the place of a histogram that is not kept
_DECISION: Final = backends.kernel(tuple(moment.name for moment in schema.MOMENTS))
compiled: ModuleType | None = _DECISION.module  # `backends.native` where it serves
host: ModuleType = arrays if compiled is None else compiled  # measures in host memory
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
    """Which kernel measures tensors in host memory, and why not the compiled one where it does not.

    Example:
        >>> in_use().split()[0] in ("native", "numpy")
        True
    """
    return str(_DECISION)


def in_use_on_cuda() -> str:
    """Which kernel measures tensors on a CUDA device, and why not Triton where it does not.

    Example:
        >>> in_use_on_cuda().split()[0] in ("triton", "reference", "none")
        True
    """
    return str(elsewhere.choose())
