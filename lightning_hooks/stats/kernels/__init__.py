"""The kernels, which measure the raw moments of tensors. `lightning_hooks.backends` chooses among them.

The compiled kernel measures tensors in host memory, and the one in Triton measures tensors on a CUDA device. The reference in
plain torch measures all other tensors: on other devices, of dtypes that are not floating, subclasses, and every tensor where
nothing is compiled, or Triton does not work. Triton is imported when the first tensor on a CUDA device is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks import backends
from lightning_hooks.stats import histogram as histograms
from lightning_hooks.stats import schema
from lightning_hooks.stats.kernels import no_kernel, reference
from lightning_hooks.stats.moments import MOMENTS, merge_in_host
from lightning_hooks.stats.units import reference as units
from lightning_hooks.tensor_kinds import held_part

__all__ = [
    "NO_HISTOGRAM",
    "FallbackWriter",
    "Trail",
    "are_finite",
    "compare_many",
    "histogram",
    "host",
    "in_use",
    "in_use_on_cuda",
    "is_capturing",
    "measure",
    "measure_many",
    "measure_units",
    "merged_in_host",
    "on_device",
    "serves_in_graphs",
    "unpacked",
]

NO_HISTOGRAM: Final = -1
"""Replaces the offset of a histogram for a row that keeps none."""
_DECISION: Final = backends.kernel(tuple(moment.name for moment in schema.MOMENTS))
host: ModuleType = _DECISION.module or no_kernel
"""The module that measures tensors in host memory: `backends.native`, or `no_kernel`, which declines every tensor."""
if TYPE_CHECKING:
    from lightning_hooks.stats.kernels.trail import Trail
    from lightning_hooks.stats.kernels.writers import FallbackWriter
else:
    FallbackWriter = host.FallbackWriter
    Trail = host.Trail


def measure(tensor: Tensor) -> Tensor:
    """The raw moments of a real and dense tensor, float64 [9] on its device, without waiting for the device.

    Example:
        >>> measure(torch.tensor([1.0, 3.0]))[:3].tolist()
        [2.0, 2.0, 2.0]
    """
    # While `torch.compile` traces, use the reference kernel: the compiler can trace none of the other kernels.
    packed = None if torch.compiler.is_compiling() else host.read(tensor)
    moments: Tensor = _other_kernel(tensor).measure(tensor) if packed is None else unpacked(packed)
    return moments


def measure_many(several: Sequence[Tensor]) -> Tensor:
    """The raw moments of several tensors on one device, float64 [len(several), 9]."""
    packed = [None] * len(several) if torch.compiler.is_compiling() else host.read_many(several)
    rows = [row for row in packed if row is not None]
    if len(rows) == len(several):
        return (
            unpacked(b"".join(rows)).view(-1, MOMENTS) if rows else torch.empty(0, MOMENTS, dtype=torch.float64, device="cpu")
        )
    if not rows:
        moments: Tensor = _other_kernel(several[0]).measure_many(several)
        return moments
    pairs = zip(several, packed, strict=True)
    return torch.stack([measure(tensor) if row is None else unpacked(row) for tensor, row in pairs])


def merged_in_host(several: Sequence[Tensor]) -> Tensor | None:
    """The raw moments of the elements of several tensors together, float64 [9]; None if `host` does not measure all of them.

    Example:
        >>> merged_in_host([torch.tensor([1.0, 3.0]), torch.ones(0), torch.tensor([5.0])])[:2].tolist()
        [3.0, 3.0]
    """
    packed = host.read_many(several)
    if None in packed:
        return None
    rows = np.frombuffer(bytearray().join(packed)).reshape(-1, MOMENTS)
    return torch.from_numpy(merge_in_host(rows[rows[:, schema.COUNT] > 0]))


def compare_many(state: Tensor, firsts: NDArray[np.int64], tensors: Sequence[Tensor], others: Sequence[Tensor]) -> list[int]:
    """Write the sums of the products, of the squares of the second and of the squares of the first tensor of pairs.

    Args:
        state: float64, contiguous; written.
        firsts: the index in `state` at which the three sums of each pair begin.
        tensors: the first tensor of each pair.
        others: the second ones.

    Returns:
        The positions of the pairs that were skipped, because no kernel compares them.
    """
    kernel = on_device(state) or (host if state.is_cpu else no_kernel)
    skipped: list[int] = kernel.compare_many(state, firsts, tensors, others)
    return skipped


def are_finite(several: Sequence[Tensor]) -> bool:
    """Whether all elements of all tensors are finite, of sharded tensors those that this rank holds.

    Waits for each device that holds some of the tensors, once, and for no other rank.

    Example:
        >>> are_finite([torch.ones(2), torch.tensor([1.0, torch.nan])])
        False
    """
    packed = host.read_many(several)
    # Numbers in host memory need no operation of torch, which takes some microseconds each.
    rows = np.frombuffer(b"".join([row for row in packed if row is not None])).reshape(-1, MOMENTS)
    others: dict[torch.device, list[Tensor]] = {}
    for tensor in [tensor for tensor, row in zip(several, packed, strict=True) if row is None]:
        # Detach the tensor, because plain torch may read it, which autograd would record.
        held = held_part(tensor).detach()
        others.setdefault(held.device, []).append(torch.view_as_real(held) if held.is_complex() else held)
    of_devices = (measure_many(group)[:, schema.NONFINITE] for group in others.values())
    return not (rows[:, schema.NONFINITE] > 0).any() and not any(bool((nonfinite > 0).any()) for nonfinite in of_devices)


def histogram(tensor: Tensor) -> Tensor:
    """The histogram of a real and dense tensor, float64 [BUCKETS] on its device, for tensors that `host` does not count.

    Example:
        >>> histogram(torch.tensor([0, 3])).sum().item()
        2.0
    """
    kernel = on_device(tensor)
    counts: Tensor | None = None if kernel is None else kernel.count(tensor)
    return histograms.histogram(tensor) if counts is None else counts


def measure_units(tensor: Tensor, axis: int) -> Tensor:
    """The units of a real and dense tensor, float64 [units, 4], for tensors that `host.measure_units` does not measure."""
    if on_device(tensor) is not None:
        from lightning_hooks.stats.kernels import cuda_units

        return cuda_units.measure(tensor, axis)
    return units.measure(tensor, axis)


def on_device(tensor: Tensor) -> ModuleType | None:
    """The module `on_cuda`, which measures on the device, if it serves for the tensor; else None."""
    return _cuda().module if tensor.is_cuda and not torch.compiler.is_compiling() else None


def serves_in_graphs(state: Tensor) -> bool:
    """Whether operations in compiled code write into the rows of a state; see `in_graphs`."""
    if on_device(state) is None:
        return False
    from lightning_hooks.stats.kernels import in_graphs

    return in_graphs.is_used


def is_capturing(device: torch.device) -> bool:
    """Whether operations on a device are now captured into a CUDA graph, and run only when the graph is replayed.

    A replay calls no hooks, so what a captured measurement writes would be read at the wrong time or after its memory is freed.
    """
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def in_use() -> str:
    """The kernel that measures tensors in host memory, with the reason if it is not the compiled one.

    Example:
        >>> in_use().split()[0] in ("native", "torch")
        True
    """
    return str(_DECISION)


def in_use_on_cuda() -> str:
    """The kernel that measures tensors on a CUDA device, with the reason if it is not the one in Triton.

    Example:
        >>> in_use_on_cuda().split()[0] in ("triton", "reference", "none")
        True
    """
    return str(_cuda())


def _other_kernel(tensor: Tensor) -> ModuleType:
    """The kernel for a tensor that `host` does not measure."""
    kernel = on_device(tensor)
    return reference if kernel is None else kernel


@cache
def _cuda() -> backends.Decision:
    return backends.cuda(_load_triton)


def _load_triton() -> tuple[ModuleType, str]:
    import triton

    from lightning_hooks.stats.kernels import on_cuda

    # Triton needs a C compiler, and does not support every device. If it does not work on this machine, `attempt` raises.
    on_cuda.attempt(torch.device("cuda", torch.cuda.current_device()))
    return on_cuda, str(triton.__version__)


def unpacked(numbers: bytes) -> Tensor:
    """A float64 tensor with a copy of packed numbers."""
    return torch.frombuffer(bytearray(numbers), dtype=torch.float64)
