"""The tensors of a parameter that a rule can watch: in which phase each is read, and how. One row per kind of tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from lightning_hooks.engine.participant import HasParameters
from lightning_hooks.errors import RuleError, did_you_mean
from lightning_hooks.rules import PARAM_TENSORS

Missing = Callable[[str, RuleError], None]
"""Called with a tensor that an optimizer does not have, as a rule names it, and an error that says so; may raise it."""
Values = Callable[[HasParameters, Sequence[nn.Parameter], str, Missing], Sequence[Tensor | None]]
"""From an optimizer, some of its parameters and a tensor as a rule names it to the tensors; None where there is none."""


def _parameters(optimizer: HasParameters, parameters: Sequence[nn.Parameter], tensor: str, missing: Missing) -> list[Tensor]:
    return [*parameters]


def _gradients(
    optimizer: HasParameters, parameters: Sequence[nn.Parameter], tensor: str, missing: Missing
) -> list[Tensor | None]:
    return [parameter.grad for parameter in parameters]


def _states(optimizer: HasParameters, parameters: Sequence[nn.Parameter], tensor: str, missing: Missing) -> list[Tensor | None]:
    found: list[Tensor | None] = []
    for parameter in parameters:
        try:
            found.append(state_of(optimizer, parameter, tensor.removeprefix("state.")))
        except RuleError as error:
            missing(tensor, error)
            found.append(None)
    return found


class ParamTensor(NamedTuple):
    """A kind of tensor of a parameter.

    Args:
        kind: as rules call it.
        phase: in which it is read.
        values: gives the tensors.
        less_before: whether the values that they had in `before_update` are subtracted.
        scaled: whether it is multiplied by the loss scale where the optimizer divides by that inside its own step.
    """

    kind: str
    phase: str
    values: Values
    less_before: bool = False
    scaled: bool = False


KINDS: Final = {
    each.kind: each
    for each in (
        ParamTensor("param", "before_step", _parameters),
        ParamTensor("grad", "before_step", _gradients, scaled=True),
        ParamTensor("final_grad", "at_final", _gradients, scaled=True),
        ParamTensor("update", "after_update", _parameters, less_before=True),
        ParamTensor("state", "after_update", _states),
    )
}
assert tuple(KINDS) == PARAM_TENSORS


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
