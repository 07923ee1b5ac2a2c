"""Functions for a user: pause the hooks of a model, assert that none is left, and see what rules would match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import nn

from lightning_hooks.engine.changing.checks import refuse_unsupported
from lightning_hooks.engine.changing.resolve import resolve_applies
from lightning_hooks.engine.inspecting.left_out import left_out_of
from lightning_hooks.engine.inspecting.match_report import Match, hooks_report, plan_report, transforms_report
from lightning_hooks.engine.running.run import paused_runs
from lightning_hooks.engine.user_hooks.participant import resolve_hooks
from lightning_hooks.errors import HooksLeftError, RuleError, shown
from lightning_hooks.plan.defaults import DEFAULT_WATCH
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.private import private
from lightning_hooks.records.limits import CHARTS, HISTOGRAM_EVERY_N_STEPS, MAX_CHARTS, MAX_HISTOGRAMS, MAX_SCALARS, Limits
from lightning_hooks.rules import Apply, Hook, Watch
from lightning_hooks.rules.reading import as_rules
from lightning_hooks.rules.schedule import EveryN

_DICTS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_post_accumulate_grad_hooks",
)


def paused(model: nn.Module) -> AbstractContextManager[None]:
    """Context manager: remove every hook of this package from a model, for export, scripting or profiling.

    Args:
        model: the watched model, a submodule of it, or a module that contains it.

    Raises:
        RuleError: `model` is not a module.

    Example:
        >>> with paused(nn.Linear(1, 1)):
        ...     pass
    """
    _refuse_other(model, "paused")
    return paused_runs(model)


def assert_no_hooks(model: nn.Module) -> None:
    """Assert that no hook of this package is on a model or its parameters.

    Args:
        model: the root module.

    Raises:
        HooksLeftError: with the names of the modules and parameters that have one.
        RuleError: `model` is not a module.

    Example:
        >>> assert_no_hooks(nn.Linear(1, 1))
    """
    _refuse_other(model, "assert_no_hooks")
    left = [f"module {name or '(root)'}" for name, module in model.named_modules() if _carries(module)]
    tensors: list[tuple[str, str, Any]] = [("parameter", *named) for named in model.named_parameters()]
    tensors += [("buffer", *named) for named in model.named_buffers()]
    left += [f"{kind} {name}" for kind, name, tensor in tensors if _carries(tensor)]
    if left:
        raise HooksLeftError(f"hooks of lightning_hooks are left on {', '.join(left)}")


def _refuse_other(model: Any, function: str) -> None:
    if not isinstance(model, nn.Module):
        advice = "; give an object of the class" if isinstance(model, type) else ""
        raise RuleError(f"{function}: model must be a torch.nn.Module, got {shown(model)}{advice}")


def _carries(holder: Any) -> bool:
    """Whether a module or a tensor has a hook of this package, or a method that this package replaced."""
    # Check the type of each attribute: a module with `__getattr__` may return anything for any name.
    attributes = (getattr(holder, name, None) for name in _dictionaries())
    hooks = [hook for dictionary in attributes if isinstance(dictionary, Mapping) for hook in dictionary.values()]
    methods = [value for name, value in vars(holder).items() if hasattr(type(holder), name)]
    return any(map(_is_ours, [*hooks, *methods]))


@cache
def _dictionaries() -> tuple[str, ...]:
    def find() -> tuple[str, ...]:
        def hook(*args: Any) -> None: ...

        module, parameter = nn.Identity(), nn.Parameter(torch.zeros(1, device="cpu"))
        module.register_forward_hook(hook)
        parameter.register_hook(hook)
        for holder in (module, parameter):
            if not any(hook is each for name in _DICTS for each in (getattr(holder, name, None) or {}).values()):
                raise AttributeError(f"a hook on a {type(holder).__name__} is in none of them")
        return _DICTS

    return private("Module._forward_hooks, Tensor._backward_hooks", find, (), "assert_no_hooks cannot see hooks")


def _is_ours(thing: Any) -> bool:
    where = getattr(thing, "__module__", None) or type(thing).__module__
    return isinstance(where, str) and where.partition(".")[0] == "lightning_hooks"


def match(model: nn.Module, *, rules: Sequence[Watch | Apply | Hook | Mapping[str, Any]] | None = None) -> Match:
    """The dry run: what rules match in a model; raises the errors that training would raise.

    Args:
        model: the root module.
        rules: rules of any kind. A mapping with `transform` is an `Apply`, one with `call` a `Hook`, any other a `Watch`.
            Default: the rules of `StatsMonitor()`.

    Raises:
        RuleError: `model` is not a module, or a rule is invalid or matches nothing.

    Example:
        >>> print(match(nn.Sequential(nn.Linear(2, 1)), rules=[Watch(params="*.bias", tensors="grad", stats="norm")]).names)
        ['0.bias']
    """
    _refuse_other(model, "match")
    by_kind: dict[type, list[Any]] = {Watch: [], Apply: [], Hook: []}
    for rule in _listed(DEFAULT_WATCH if rules is None else rules):
        by_kind[_kind_of(rule)].append(rule)
    watch = as_rules(Watch, by_kind[Watch], "watch")
    interval = HISTOGRAM_EVERY_N_STEPS
    plan = resolve(model, watch, EveryN(), draws_every=interval) if watch else None
    lines = [] if plan is None else plan_report(plan, None, _limits(plan, is_default=rules is None), interval)
    transforms = resolve_applies(model, as_rules(Apply, by_kind[Apply], "apply"))
    refuse_unsupported(transforms, (), scaled=False)
    lines += transforms_report(transforms)
    lines += hooks_report(resolve_hooks(model, as_rules(Hook, by_kind[Hook], "hooks")))
    return Match(lines, left_out_of(model, watch))


def _limits(plan: Plan, *, is_default: bool) -> Limits:
    """What a monitor with these rules, or without any, writes of them."""
    most, charts = (MAX_CHARTS, CHARTS) if is_default else (MAX_SCALARS, None)
    return Limits({"train": plan.index}, most, MAX_HISTOGRAMS, (), charts)


def _listed(rules: Any) -> list[Any]:
    if isinstance(rules, (Watch, Apply, Hook, Mapping)):
        return [rules]
    if isinstance(rules, (str, bytes)) or not isinstance(rules, Iterable):
        raise RuleError(f"match: rules must be a list of Watch, Apply, Hook or mappings, got {shown(rules)}")
    return list(rules)


def _kind_of(rule: Any) -> type:
    if isinstance(rule, Mapping):
        return Apply if "transform" in rule else Hook if "call" in rule else Watch
    return type(rule) if isinstance(rule, (Apply, Hook)) else Watch
