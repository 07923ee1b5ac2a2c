"""The parameters and buffers that were not finite when a run began, so that no update of the run has made them so."""

from __future__ import annotations

import math
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightning_hooks.engine.recording.summaries import real_values
from lightning_hooks.stats.host_copy import begin_copy


class StartingNumbers:
    """The largest magnitude of each parameter and buffer of a model, as it is now. Waits for no device until it is asked.

    Args:
        model: its tensors are read once, and none is kept.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> _ = nn.init.constant_(model.bias, torch.inf)
        >>> sorted(StartingNumbers(model).nonfinite)
        ['bias']
    """

    def __init__(self, model: nn.Module) -> None:
        largest: dict[torch.device, dict[str, Tensor]] = {}
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            number = _largest(tensor)
            if number is not None:
                largest.setdefault(number.device, {})[name] = number
        self._copies = [(tuple(each), begin_copy(torch.stack([*each.values()]))) for each in largest.values()]

    @cached_property
    def nonfinite(self) -> frozenset[str]:
        """The names of the parameters and buffers that were not finite."""
        known = (zip(names, copy.wait(), strict=True) for names, copy in self._copies)
        return frozenset(name for name, number in chain.from_iterable(known) if not np.isfinite(number))


def _largest(tensor: Tensor) -> Tensor | None:
    """The largest magnitude of a tensor; None if it cannot be read."""
    if is_lazy(tensor):
        return None
    try:
        values = real_values(tensor)
        return None if values is None else torch.linalg.vector_norm(values, math.inf).double()
    except Exception:
        # A subclass of Tensor may lack any operation, which must not end the training.
        return None
