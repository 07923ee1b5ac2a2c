"""Tables of integers that kernels read. A table is copied to the device once, and kept while steps need the same one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.stats import kernels
from lightning_hooks.stats.host_copy import to_device
from lightning_hooks.stats.kernels.launching import current_stream

_MOST: Final = 64  # tables: a step of a monitor needs about five
_kept: OrderedDict[tuple[torch.device, int, bytes], Tensor] = OrderedDict()


def kept_on(device: torch.device, numbers: bytes) -> Tensor:
    """A table on a device, copied on the current stream, without waiting for the device.

    Args:
        device: which must be the current one.
        numbers: packed int64 numbers, at least one.
    """
    # A copy on another stream may not be complete when this stream reads it, so each stream has its own.
    key = device, current_stream(-1 if device.index is None else device.index), numbers
    table = _kept.get(key)
    if table is None:
        table = to_device(np.frombuffer(bytearray(numbers), dtype=np.int64), device)
        # While a graph is captured, the copy is not made now, but by replays of the graph.
        if not kernels.is_capturing(device):
            _kept[key] = table
    else:
        _kept.move_to_end(key)
    while len(_kept) > _MOST:
        _kept.popitem(last=False)
    return table
