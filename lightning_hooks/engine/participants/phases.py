"""The phases of an optimizer's step, and the table of which tensor of a parameter exists in which.

In order: `before_step` (gradients are accumulated, unscaled and averaged), `final` (gradients are clipped and changed),
`before_update` (parameters still have their old values), `after_update` (parameters have their new values). If the step has a
closure, in which Lightning runs the training step, `before_update` follows `before_step` inside the closure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from weakref import WeakMethod

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks import rules
from lightning_hooks.errors import RuleError, did_you_mean
from lightning_hooks.hooks import Handles, HookSwitch
from lightning_hooks.hooks.user_kinds import OptimizerHook, closure_of, optimizer_hook, register_optimizer


class ParamTensor(NamedTuple):
    """One tensor of a parameter: when it exists, and how it is read.

    Args:
        phase: the phase in which the tensor exists.
        value: returns the tensor, given an optimizer, a parameter, the copy of the parameter from `before_update` and the key
            of the state; None if there is no such tensor now.
        scaled: whether the tensor is still multiplied by the loss scale if the optimizer unscales inside its step.
        is_change: whether the tensor is the difference between the parameter and its copy. The kernels subtract; `value` is
            called only if they cannot.
        of_all: returns the tensors of several parameters in one call; None if only `value` finds them.
    """

    phase: Literal["before_step", "final", "after_update"]
    value: Callable[[Any, nn.Parameter, Tensor | None, str], Tensor | None]
    scaled: bool = False
    is_change: bool = False
    of_all: Callable[[Sequence[nn.Parameter]], list[Tensor | None]] | None = None


def _update(optimizer: Any, parameter: nn.Parameter, before: Tensor | None, key: str) -> Tensor | None:
    # Subtract in float32 at least, because the difference of two float16 or bfloat16 numbers may need more digits than they
    # have.
    wide = torch.promote_types(parameter.dtype, torch.float32)
    return None if before is None else parameter.detach().to(wide) - before


def state_of(optimizer: Any, parameter: nn.Parameter, before: Tensor | None, key: str) -> Tensor | None:
    """One tensor of an optimizer's state; a number is returned as a tensor. None if the parameter has not stepped.

    Raises:
        RuleError: no such key (the message names the others), or it holds no tensor.
    """
    state = getattr(optimizer, "state", {}).get(parameter, {})
    if key not in state:
        if not state and parameter.grad is None:
            return None
        kind = type(optimizer).__name__
        keys = f"it has {', '.join(map(str, state))}" if state else "it keeps nothing for this parameter"
        raise RuleError(f"tensors: 'state.{key}': {kind} has no {key!r}{did_you_mean(key, map(str, state))}; {keys}")
    value = state[key]
    if value is None:
        return None
    if isinstance(value, (int, float)):
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    if isinstance(value, Tensor):
        return value if value.is_floating_point() or value.is_complex() else value.double()
    raise RuleError(f"tensors: 'state.{key}' of {type(optimizer).__name__} is not a tensor but {type(value).__name__}")


def _gradient(optimizer: Any, parameter: nn.Parameter, before: Tensor | None, key: str) -> Tensor | None:
    return parameter.grad


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    return [parameter.grad for parameter in parameters]


PARAM_TENSORS: Final[dict[str, ParamTensor]] = {
    "param": ParamTensor("before_step", lambda optimizer, parameter, before, key: parameter, of_all=list),
    "grad": ParamTensor("before_step", _gradient, scaled=True, of_all=_gradients),
    "final_grad": ParamTensor("final", _gradient, scaled=True, of_all=_gradients),
    "update": ParamTensor("after_update", _update, is_change=True),
    "state": ParamTensor("after_update", state_of),
}
"""Every tensor of a parameter that a rule can name, in the order of `rules.PARAM_TENSORS`."""

assert tuple(PARAM_TENSORS) == rules.PARAM_TENSORS


RunPhase: TypeAlias = Callable[[str, Optimizer, bool], None]
"""Runs a phase, given its name, the optimizer, and whether a closure is still to run in the optimizer's step."""


class UpdateHooks:
    """The hooks that run `before_update` and `after_update` around the steps of optimizers: created once, as late as possible.

    Args:
        run: runs a phase; the hooks do nothing once the hook manager is garbage-collected.
        switch: the switch that the hooks read.
    """

    def __init__(self, run: WeakMethod[RunPhase], switch: HookSwitch) -> None:
        self._run = run
        self._switch = switch

    @cached_property
    def _hooks(self) -> tuple[OptimizerHook, OptimizerHook]:
        return self._hook("before_update"), self._hook("after_update")

    def _hook(self, name: str) -> OptimizerHook:
        run = self._run

        def run_phase(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            alive = run()
            if alive is not None:
                alive(name, optimizer, closure_of(args, kwargs) is not None)

        return optimizer_hook(run_phase, self._switch)

    def register(self, optimizer: Optimizer, handles: Handles) -> None:
        """Register the hooks on an optimizer; closing `handles` removes them.

        Raises:
            UnsupportedError: the optimizer has no hooks around its step.
        """
        before, after = self._hooks
        register_optimizer(optimizer, before, handles, before=True)
        register_optimizer(optimizer, after, handles, before=False)
