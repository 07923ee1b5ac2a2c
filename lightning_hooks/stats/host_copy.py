"""Copies between the memory of this machine and a device: of CUDA neither side waits for the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


class HostCopy(Protocol):
    """A copy that has been asked for."""

    @property
    def here(self) -> bool:
        """Whether to read it now costs no waiting for a device, so that there is nothing to gain from reading it later."""

    def wait(self) -> Array:
        """The copy, once it is here."""


class Here:
    """What is in the memory of this machine already.

    Args:
        array: there.
    """

    here = True

    def __init__(self, array: Array) -> None:
        self._array = array

    def wait(self) -> Array:
        """The array."""
        return self._array


class Pinned:
    """A copy through pinned memory, behind what the current stream of the device has to do, while the host goes on.

    Args:
        tensor: on a CUDA device; what is written into it afterwards on the same stream is not in the copy.
    """

    here = False

    def __init__(self, tensor: Tensor) -> None:
        # torch keeps pinned memory for reuse: only the first copies allocate.
        self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._copy.copy_(tensor, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> Array:
        """The copy; waits for the device where it has not got there yet."""
        self._done.synchronize()
        return self._copy.numpy()


def begin_copy(tensor: Tensor) -> HostCopy:
    """Ask for a copy in the memory of this machine.

    Args:
        tensor: anywhere. One that is there already is given as it is, and one on another device than CUDA is waited for.

    Example:
        >>> copy = begin_copy(torch.ones(2))
        >>> copy.here, copy.wait().tolist()
        (True, [1.0, 1.0])
    """
    return Pinned(tensor.detach()) if tensor.is_cuda else at_once(tensor)


def at_once(tensor: Tensor) -> HostCopy:
    """What lies anywhere, in the memory of this machine; its device is waited for.

    Args:
        tensor: as in `begin_copy`.
    """
    return Here(tensor.detach().cpu().numpy())


def to_device(numbers: Sequence[int] | NDArray[np.int64], device: torch.device) -> Tensor:
    """Whole numbers, int64, on a device.

    Args:
        numbers: any.
        device: where.
    """
    here = torch.as_tensor(numbers, dtype=torch.int64)
    # torch keeps pinned memory from being used again before a copy out of it is done.
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here.to(device)
