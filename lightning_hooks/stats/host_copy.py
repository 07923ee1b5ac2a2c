"""Copies of a tensor into host memory. A copy from CUDA blocks neither host nor device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


class HostCopy(Protocol):
    """A copy into host memory that was requested, and may not be complete yet."""

    @property
    def ready(self) -> bool:
        """Whether `wait` returns without waiting for a device."""

    @property
    def has_arrived(self) -> bool:
        """Whether the copy is complete by now."""

    def wait(self) -> Array:
        """The copy. Waits for the device if the copy is not complete."""


class InHostMemory:
    """An array that is in host memory already, so it is not copied."""

    ready = has_arrived = True

    def __init__(self, array: Array) -> None:
        self._array = array

    def wait(self) -> Array:
        return self._array


class PinnedCopy:
    """A copy into pinned memory, queued on the current stream of the device; the host does not wait.

    Args:
        tensor: on a CUDA device. Later writes to the tensor on the same stream do not change the copy.
    """

    ready = False

    def __init__(self, tensor: Tensor) -> None:
        # Pinning memory is slow, but torch caches pinned memory, so only the first copies allocate any.
        self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True, device="cpu")
        self._copy.copy_(tensor, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record(torch.cuda.current_stream(tensor.device))

    @property
    def has_arrived(self) -> bool:
        return bool(self._done.query())

    def wait(self) -> Array:
        self._done.synchronize()
        return self._copy.numpy()


def begin_copy(tensor: Tensor) -> HostCopy:
    """Request a copy in host memory.

    Args:
        tensor: on any device. A copy of a tensor in host memory shares its memory. A copy from a device other than CUDA is
            complete when this function returns.

    Example:
        >>> copy = begin_copy(torch.ones(2))
        >>> copy.ready, copy.wait().tolist()
        (True, [1.0, 1.0])
    """
    return PinnedCopy(tensor.detach()) if tensor.is_cuda else copy_now(tensor)


def copy_now(tensor: Tensor) -> HostCopy:
    """As `begin_copy`, but waits until the copy is complete, on CUDA too."""
    return InHostMemory(tensor.detach().cpu().numpy())


def to_device(numbers: Sequence[int] | NDArray[np.int64], device: torch.device) -> Tensor:
    """Integers as an int64 tensor on a device, without waiting for the device."""
    on_host = torch.as_tensor(numbers, dtype=torch.int64, device="cpu")
    # The pinned tensor may be freed here: torch reuses its memory only when the copy to the device is complete.
    return on_host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else on_host.to(device)
