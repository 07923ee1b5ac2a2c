"""Checks the arguments of `instrument`: its list, its optimizers, and rules that a plain loop cannot serve."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lightning_hooks.engine.participants.phases import PARAM_TENSORS
from lightning_hooks.engine.plain_loop.part import InLoop
from lightning_hooks.engine.plain_loop.wrappers import unwrapped_optimizer
from lightning_hooks.errors import RuleError, UnsupportedError, did_you_mean, shown
from lightning_hooks.hooks import Handles
from lightning_hooks.hooks.switch import COUNTED
from lightning_hooks.hooks.user_kinds import closure_of, optimizer_hook, register_optimizer
from lightning_hooks.rules import OPTIMIZER_KINDS, Apply, Hook, Watch, parse_tensor


def as_callbacks(given: Any) -> list[InLoop]:
    """The objects of the list, each once, in order. A single object counts as a list of one.

    Raises:
        RuleError: the list is empty, or holds something else, such as a callback that only a Trainer calls.
    """
    listed = [given] if isinstance(given, InLoop) else given
    if not isinstance(listed, Sequence) or isinstance(listed, (str, bytes)):
        if isinstance(given, Optimizer):
            kind = type(given).__name__
            raise RuleError(f"callbacks must be a list such as [StatsMonitor(), HealthMonitor()]; give {kind} as optimizer=")
        raise RuleError(f"callbacks must be a list such as [StatsMonitor(), HealthMonitor()], got {shown(given)}")
    if not listed:
        raise RuleError("callbacks is an empty list; give at least one, or omit it for StatsMonitor() and HealthMonitor()")
    for position, each in enumerate(listed):
        if isinstance(each, type) and callable(getattr(each, "in_loop", None)):
            raise RuleError(f"callbacks[{position}] is the class {each.__name__}; give an object of it")
        if not isinstance(each, InLoop):
            raise RuleError(
                f"callbacks[{position}] must be a callback of lightning_hooks, got {shown(each)}{_advice_for(each)}"
            )
    once = list({id(each): each for each in listed}.values())
    for each in once:
        if (count := sum(other is each for other in listed)) > 1:
            warnings.warn(f"{type(each).__name__} appears {count} times in the list of instrument; it acts once", stacklevel=3)
    return once


def _advice_for(given: Any) -> str:
    kinds = {
        Watch: "StatsMonitor([…])",
        Apply: "GradientTransforms([…]) or ActivationTransforms([…])",
        Hook: "CustomHooks([…])",
    }
    return next((f"; put rules into {inside}" for kind, inside in kinds.items() if isinstance(given, kind)), "")


def as_optimizers(given: Any) -> list[Any]:
    """The optimizers that step, each once, without their wrappers.

    A single object with a method `step` counts as one optimizer, whatever its class.
    """
    if given is None:
        return []
    alone = hasattr(given, "step") or isinstance(given, str) or not isinstance(given, Iterable)
    several = [given] if alone else list(given)
    for each in several:
        if isinstance(each, type):
            raise RuleError(f"optimizer must be a torch optimizer, got the class {each.__name__}; construct one of it")
        if not hasattr(each, "step"):
            raise RuleError(f"optimizer must be a torch optimizer, or a list of them, got {type(each).__name__}: {shown(each)}")
    return list({id(each): each for each in map(unwrapped_optimizer, several)}.values())


def refuse_foreign(model: nn.Module, optimizers: Sequence[Any]) -> None:
    """Refuse an optimizer that holds no parameter of the model. It may hold parameters of other models too.

    Raises:
        RuleError: the optimizer is that of another model.
    """
    known = {id(parameter) for parameter in model.parameters()}
    for index, optimizer in enumerate(optimizers):
        held = parameters_of(optimizer) if hasattr(optimizer, "param_groups") else []
        if known and held and known.isdisjoint(map(id, held)):
            which = f"optimizer[{index}]" if len(optimizers) > 1 else "optimizer"
            raise RuleError(
                f"{which}: {type(optimizer).__name__} holds none of the {len(known)} parameters of {type(model).__name__}; "
                "give the optimizer of this model. If it steps copies of the parameters, omit optimizer= and call step()"
            )


def register(optimizer: Optimizer, run: Callable[..., None], handles: Handles, *, before: bool) -> None:
    try:
        register_optimizer(optimizer, optimizer_hook(run, None), handles, before=before)
    except UnsupportedError as error:
        inside = getattr(optimizer, "optimizer", None)
        named = f"give its attribute optimizer ({type(inside).__name__}), if that makes the whole update, or "
        advice = f"{'' if inside is None else named}omit optimizer= and call step()"
        raise UnsupportedError(f"instrument: {error}; {advice}") from error


def refuse_step(optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Refuse a step of an optimizer before which its gradients are not complete."""
    if closure_of(args, kwargs) is not None:
        raise UnsupportedError(
            "instrument: the optimizer got a closure, whose gradients do not exist yet when its step begins; call "
            "optimizer.step() without one, or omit optimizer= and call step()"
        )
    # The scaler sets `grad_scale` on a fused optimizer, which divides gradients by the scale inside its own step.
    if getattr(optimizer, "grad_scale", None) is not None:
        raise UnsupportedError(
            "instrument: the gradients are still multiplied by the loss scale, because a fused optimizer divides them in "
            "its own step; call scaler.unscale_(optimizer) before scaler.step(optimizer), or use fused=False"
        )


def parameters_of(optimizer: Optimizer) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def refuse_other_stages(stages: Iterable[str] | None, where: str = "stages") -> None:
    """Refuse stages in which nothing would happen: a loop does not announce when a validation begins.

    Args:
        stages: as a user gave them; None for those of training.
        where: the name of the option in messages.
    """
    if stages is not None and {*stages} != {"train"}:
        raise RuleError(f"{where}: instrument knows one stage, 'train'; got {list(stages)}")


def without_optimizer(watch: Sequence[Watch], name: str = "watch") -> list[Watch]:
    """Refuse rules that need an optimizer, and return the rules with the tensors that exist without an optimizer.

    Args:
        watch: the rules.
        name: of their list in messages.
    """
    for i, rule in enumerate(watch):
        for tensor in rule.tensors or ():
            row = PARAM_TENSORS.get(parse_tensor(tensor)[0])
            if row is not None and row.phase != "before_step":
                raise RuleError(f"{name}[{i}].tensors: {tensor!r} is only seen with an optimizer; give instrument(optimizer=…)")
    available = tuple(tensor for tensor, row in PARAM_TENSORS.items() if row.phase == "before_step")
    return [replace(rule, tensors=available) if rule.params is not None and rule.tensors is None else rule for rule in watch]


def refuse_without_optimizer(apply: Sequence[Apply] = (), hooks: Sequence[Hook] = (), label: str = "") -> None:
    """Refuse rules that need an optimizer.

    Args:
        apply: rules of transforms.
        hooks: rules of a user's hooks.
        label: how messages name their callback.
    """
    for i, rule in enumerate(apply):
        if rule.acts_at() == "step":
            raise RuleError(
                f"{label}apply[{i}].when: 'step' needs an optimizer; give instrument(optimizer=…) or when='backward'"
            )
    for i, hook in enumerate(hooks):
        if hook.kind in OPTIMIZER_KINDS:
            raise RuleError(f"{label}hooks[{i}].kind: {hook.kind!r} needs an optimizer; give instrument(optimizer=…)")


class AllParameters:
    """Stands for the optimizer in a loop without one: the phase `before_step` reads only `param_groups`."""

    def __init__(self, model: nn.Module) -> None:
        self.param_groups = [{"params": list(model.parameters())}]


def check_calls(calls: Any) -> None:
    """Raise unless `calls` says which calls of modules count."""
    if calls not in COUNTED:
        raise RuleError(f"calls must be one of {', '.join(COUNTED)}, got {shown(calls)}{did_you_mean(calls, COUNTED, 1)}")
