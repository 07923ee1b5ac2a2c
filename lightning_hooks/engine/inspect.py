"""Hooks of ours on a model: none for a block, none at all, and the dry run of a rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from lightning_hooks.engine.custom import resolve_hooks
from lightning_hooks.engine.dispatcher import live_dispatchers
from lightning_hooks.engine.report import Match, hooks_report, links_report, plan_report
from lightning_hooks.engine.resolve_links import resolve_links
from lightning_hooks.engine.resolve_rows import resolve
from lightning_hooks.errors import HooksLeftError
from lightning_hooks.reading import as_rules
from lightning_hooks.rules import Apply, Hook, Watch
from lightning_hooks.schedule import EveryN
from lightning_hooks.taps import OurHook, in_slot

_MODULE_DICTS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TENSOR_DICTS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@contextmanager
def paused(model: nn.Module) -> Iterator[None]:
    """Context manager: remove every hook of this package from a model, for export, scripting or profiling.

    Args:
        model: the watched model, a submodule of it, or a module that contains it.

    Example:
        >>> with paused(nn.Linear(1, 1)):
        ...     pass
    """
    dispatchers = live_dispatchers(model)
    for dispatcher in dispatchers:
        dispatcher.pause(True)
    try:
        yield
    finally:
        for dispatcher in dispatchers:
            dispatcher.pause(False)


def assert_no_hooks(model: nn.Module) -> None:
    """Assert that no hook of this package is on a model or its parameters.

    Args:
        model: the root module.

    Raises:
        HooksLeftError: with the names of the modules and parameters that have one.

    Example:
        >>> assert_no_hooks(nn.Linear(1, 1))
    """
    left = [f"module {name or '(root)'}" for name, module in model.named_modules() if _carries(module, _MODULE_DICTS)]
    left += [f"parameter {name}" for name, parameter in model.named_parameters() if _carries(parameter, _TENSOR_DICTS)]
    if left:
        raise HooksLeftError(f"hooks of lightning_hooks are left on {', '.join(left)}")


def _carries(holder: Any, dicts: Sequence[str]) -> bool:
    hooks = [hook for name in dicts for hook in (getattr(holder, name, None) or {}).values()]
    return any(isinstance(hook, OurHook) for hook in (*hooks, in_slot(holder)))


def match(model: nn.Module, rules: Sequence[Watch | Apply | Hook | Mapping[str, Any]]) -> Match:
    """The dry run: what rules match in a model; raises the errors that training would raise.

    Args:
        model: the root module.
        rules: rules of any kind. A mapping with `transform` is an `Apply`, one with `call` a `Hook`, any other a `Watch`.

    Raises:
        RuleError: an invalid rule, or one that matches nothing.

    Example:
        >>> print(match(nn.Sequential(nn.Linear(2, 1)), [Watch(params="*.bias", tensors="grad", stats="norm")]).names)
        ['0.bias']
    """
    rules = [rules] if isinstance(rules, (Watch, Apply, Hook, Mapping)) else list(rules)
    by_kind: dict[type, list[Any]] = {Watch: [], Apply: [], Hook: []}
    for rule in rules:
        by_kind[_kind_of(rule)].append(rule)
    lines = []
    if by_kind[Watch]:
        lines += plan_report(resolve(model, as_rules(Watch, by_kind[Watch], "watch"), EveryN()))
    lines += links_report(resolve_links(model, as_rules(Apply, by_kind[Apply], "apply")))
    lines += hooks_report(resolve_hooks(model, as_rules(Hook, by_kind[Hook], "hooks")))
    return Match(lines)


def _kind_of(rule: Any) -> type:
    if isinstance(rule, Mapping):
        return Apply if "transform" in rule else Hook if "call" in rule else Watch
    return type(rule) if isinstance(rule, (Apply, Hook)) else Watch
