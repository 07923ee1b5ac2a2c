"""The phases of an optimizer's step, and the table of which tensor of a parameter exists in which.

In order: `before_step` (gradients are accumulated, unscaled and averaged), `final` (clipped and changed), `before_update`
(the parameters are still the old ones), `after_update` (the parameters are the new ones).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakMethod

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks import rules
from lightning_hooks.engine.participant import HasParameters, Participant, PhaseMemo
from lightning_hooks.errors import RuleError, did_you_mean
from lightning_hooks.hooks import Handles, OurHook


class ParamTensor(NamedTuple):
    """One tensor of a parameter: when it exists, and how it is read.

    Args:
        phase: in which it exists.
        value: of an optimizer, a parameter, its copy from `before_update` and the key of a state; None where there is none.
        scaled: whether an optimizer that unscales inside its step is still to divide it by the loss scale.
        copied: whether it needs the copy.
    """

    phase: str
    value: Callable[[Any, nn.Parameter, Tensor | None, str], Tensor | None]
    scaled: bool = False
    copied: bool = False


def _update(optimizer: Any, parameter: nn.Parameter, before: Tensor | None, key: str) -> Tensor | None:
    # In float32 at least: the difference of two numbers of half precision need not be one.
    wide = torch.promote_types(parameter.dtype, torch.float32)
    return None if before is None else parameter.detach().to(wide) - before


def state_of(optimizer: Any, parameter: nn.Parameter, before: Tensor | None, key: str) -> Tensor | None:
    """One tensor of an optimizer's state: the tensor itself, or a number as a tensor.

    None where the parameter did not step or the entry is empty.

    Args:
        optimizer: which has just stepped.
        parameter: whose state.
        before: not used.
        key: `exp_avg_sq`, `momentum_buffer`, …

    Raises:
        RuleError: no such key (the message names the others), or it holds no tensor.
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
    raise RuleError(f"tensors: 'state.{key}' of {type(optimizer).__name__} is not a real tensor but {type(value).__name__}")


PARAM_TENSORS: Final[dict[str, ParamTensor]] = {
    "param": ParamTensor("before_step", lambda optimizer, parameter, before, key: parameter),
    "grad": ParamTensor("before_step", lambda optimizer, parameter, before, key: parameter.grad, scaled=True),
    "final_grad": ParamTensor("final", lambda optimizer, parameter, before, key: parameter.grad, scaled=True),
    "update": ParamTensor("after_update", _update, copied=True),
    "state": ParamTensor("after_update", state_of),
}
"""Every tensor of a parameter: a row here, its name in `rules.PARAM_TENSORS`."""

assert tuple(PARAM_TENSORS) == rules.PARAM_TENSORS


RunPhase: TypeAlias = WeakMethod[Callable[[str, HasParameters], None]]
"""Runs a phase, given its name and the optimizer; does nothing if the hook manager was garbage-collected."""


class Phases:
    """Runs the phases of the optimizers' steps within one step of training.

    `scale` is the loss scale of the last backward; None where none was noted.
    """

    def __init__(self) -> None:
        self.scale: Tensor | None = None
        self._memos: dict[int, tuple[HasParameters, PhaseMemo]] = {}  # with the optimizer, so that its id stays its own

    def clear(self) -> None:
        """Forget the step that ends."""
        self._memos.clear()

    def before_step(self, participant: Participant, optimizer: HasParameters) -> None:
        """Run `before_step` of one participant: each acts in its turn among the callbacks of other packages.

        Args:
            participant: which.
            optimizer: whose step.
        """
        memo = self._memo(optimizer)
        if participant in memo.acted:  # LBFGS runs its closure again
            memo.acted.clear()
            memo.skipped = False
        memo.acted.append(participant)
        with participant.account:
            participant.before_step(optimizer, memo)

    def run(self, name: str, optimizer: HasParameters, active: Sequence[Participant]) -> None:
        """Run one of the other phases of every participant.

        Args:
            name: `final`, `before_update` or `after_update`.
            optimizer: whose step.
            active: all who act in the step.
        """
        memo = self._memo(optimizer)
        for participant in active:
            with participant.account:
                getattr(participant, name)(optimizer, memo)

    def scaled_by(self, scale: Tensor, active: Sequence[Participant]) -> None:
        """Note the loss scale of the backward that begins, and tell by how much it differs from that of the one before."""
        # Only where an optimizer has stepped can the scale have changed.
        factor = scale / self.scale if self._memos and self.scale is not None else None
        self.scale = scale.detach().clone()
        for participant in active:
            participant.scaled_by(self.scale, factor)

    def _memo(self, optimizer: HasParameters) -> PhaseMemo:
        if id(optimizer) not in self._memos:
            self._memos[id(optimizer)] = optimizer, PhaseMemo()
        return self._memos[id(optimizer)][1]


def hook_updates(optimizer: Optimizer, phase: RunPhase, handles: Handles) -> None:
    """Run `before_update` and `after_update` around an optimizer's step.

    Args:
        optimizer: which.
        phase: called with the name of the phase and the optimizer.
        handles: takes over the handles.
    """
    handles.keep(optimizer.register_step_pre_hook(_UpdateHook(phase, "before_update")))
    handles.keep(optimizer.register_step_post_hook(_UpdateHook(phase, "after_update")))


class _UpdateHook(OurHook):
    def __init__(self, phase: RunPhase, name: str) -> None:
        self.phase = phase
        self.name = name

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        run = self.phase()
        if run is not None:
            run(self.name, optimizer)
