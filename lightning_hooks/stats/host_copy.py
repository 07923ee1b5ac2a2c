"""Copies into host memory: of a tensor, and of the merged state of a table. For CUDA neither side waits for the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats.requests import FACTOR, STOP

Array = NDArray[Any]


class HostCopy(Protocol):
    """A copy that was requested."""

    @property
    def ready(self) -> bool:
        """Whether reading the copy now never waits for a device, so that reading it later gains nothing."""

    def wait(self) -> Array:
        """The copy; waits for the device if it has to."""


class InHostMemory:
    """An array in host memory: nothing is copied."""

    ready = True

    def __init__(self, array: Array) -> None:
        self._array = array

    def wait(self) -> Array:
        return self._array


class PinnedCopy:
    """A copy into pinned memory, queued on the current stream of the device; the host does not wait.

    Args:
        tensor: on a CUDA device; later writes to it on the same stream do not reach the copy.
    """

    ready = False

    def __init__(self, tensor: Tensor) -> None:
        # torch caches pinned memory: only the first copies allocate.
        self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True, device="cpu")
        self._copy.copy_(tensor, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> Array:
        self._done.synchronize()
        return self._copy.numpy()


def begin_copy(tensor: Tensor) -> HostCopy:
    """Request a copy in host memory.

    Args:
        tensor: on any device. In host memory the result shares its memory; devices other than CUDA are waited for.

    Example:
        >>> copy = begin_copy(torch.ones(2))
        >>> copy.ready, copy.wait().tolist()
        (True, [1.0, 1.0])
    """
    return PinnedCopy(tensor.detach()) if tensor.is_cuda else copy_now(tensor)


def copy_now(tensor: Tensor) -> HostCopy:
    """As `begin_copy`, but waits for every device."""
    return InHostMemory(tensor.detach().cpu().numpy())


def to_device(numbers: Sequence[int] | NDArray[np.int64], device: torch.device) -> Tensor:
    """Integers as an int64 tensor on a device, without waiting for it."""
    on_host = torch.as_tensor(numbers, dtype=torch.int64, device="cpu")
    # torch does not reuse pinned memory before the copy out of it is done.
    return on_host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else on_host.to(device)


class MergedState(NamedTuple):
    """The state of a table merged over all ranks.

    Args:
        state: flat. With a single rank and a table in host memory it aliases the table, so the next write changes it.
        stop: whether any rank requests to stop.
        factor: the greatest factor that any rank requests for its intervals.
    """

    state: NDArray[np.float64]
    stop: bool
    factor: int


class PendingState:
    """A merged state whose copy may still be on its way from the device.

    Args:
        requests: whether to stop, and the factor, of a single rank; None where they are in the state.
    """

    def __init__(self, copy: HostCopy, requests: tuple[bool, int] | None = None) -> None:
        self._copy = copy
        self._requests = requests

    @property
    def ready(self) -> bool:
        """As of `HostCopy`."""
        return self._copy.ready

    @cached_property
    def merged(self) -> MergedState:
        """The state; waits for the device if it has to."""
        state = self._copy.wait()
        return MergedState(state, *(self._requests or (bool(state[STOP]), int(state[FACTOR]))))
