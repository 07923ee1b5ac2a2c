"""An operator in double precision: whether its infinite result exceeds the range of its type, or is infinite in any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.engine.recording.operators import results_of


def is_infinite_in_double(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], position: int | None) -> bool:
    """Whether a result has infinite elements also if the operator computes it in float64.

    Args:
        operator: changes none of its arguments.
        args: its arguments, with finite tensors.
        kwargs: its arguments by name.
        position: of the result; None if the operator gives one tensor.

    Example:
        >>> one, zero, largest = torch.ones(1), torch.zeros(1), torch.tensor([65504.0], dtype=torch.float16)
        >>> is_infinite_in_double(torch.ops.aten.div.Tensor, (one, zero), {}, None)
        True
        >>> is_infinite_in_double(torch.ops.aten.mul.Tensor, (largest, largest), {}, None)
        False
    """
    results = results_of(operator(*_in_double(args), **_in_double(kwargs)))
    return any(i == position and bool(each.isinf().any()) for i, each in results)


def _in_double(value: Any) -> Any:
    """An argument with float64 in place of each narrower type of real numbers."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if isinstance(value, (list, tuple)):
        return [_in_double(each) for each in value]
    return {name: _in_double(each) for name, each in value.items()} if isinstance(value, Mapping) else value
