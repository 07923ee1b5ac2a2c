"""The parameters and buffers that were not finite when a run began, so that no update of the run has made them so."""

from __future__ import annotations

import math
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn
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
        self._names: list[str] = []
        largest = []
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            values = None if is_lazy(tensor) else real_values(tensor)
            if values is not None:
                self._names.append(name)
                largest.append(torch.linalg.vector_norm(values, math.inf).double())
        device = largest[0].device if largest else None
        self._copy = begin_copy(torch.stack([each.to(device, non_blocking=True) for each in largest])) if largest else None

    @cached_property
    def nonfinite(self) -> frozenset[str]:
        """The names of the parameters and buffers that were not finite."""
        numbers: Any = () if self._copy is None else self._copy.wait()
        return frozenset(name for name, number in zip(self._names, numbers, strict=True) if not np.isfinite(number))
