"""What an optimizer keeps for a parameter, by its key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.errors import RuleError, did_you_mean


def state_of(optimizer: Any, parameter: nn.Parameter, key: str) -> Tensor | None:
    """One tensor of an optimizer's state.

    Args:
        optimizer: which has just stepped.
        parameter: whose state.
        key: `exp_avg_sq`, `momentum_buffer`, …

    Returns:
        The tensor itself, a number as a tensor, or None where the parameter did not step or the entry is empty.

    Raises:
        RuleError: there is no such key, with those there are; or it holds no tensor.
    """
    state = getattr(optimizer, "state", {}).get(parameter, {})
    if key not in state:
        if not state and parameter.grad is None:
            return None
        kind = type(optimizer).__name__
        there = f"it has {', '.join(map(str, state))}" if state else "it keeps nothing for this parameter"
        raise RuleError(f"tensors: 'state.{key}': {kind} has no {key!r}{did_you_mean(key, map(str, state))}; {there}")
    value = state[key]
    if value is None or (isinstance(value, Tensor) and value.is_floating_point()):
        return value
    if isinstance(value, (int, float)) or (isinstance(value, Tensor) and not value.is_complex()):
        return torch.as_tensor(value, dtype=torch.float64)
    raise RuleError(f"tensors: 'state.{key}' of {type(optimizer).__name__} is no real tensor but {type(value).__name__}")
