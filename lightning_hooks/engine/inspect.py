"""Hooks of ours on a model: none for a block, none at all, and the dry run of a rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from lightning_hooks.engine.changer import resolve_links
from lightning_hooks.engine.dispatcher import live_dispatchers
from lightning_hooks.engine.plan import resolve
from lightning_hooks.engine.report import Match, links_report, plan_report
from lightning_hooks.errors import HooksLeftError
from lightning_hooks.reading import as_rules
from lightning_hooks.rules import Apply, Watch
from lightning_hooks.schedule import EveryN
from lightning_hooks.taps import OurHook

_MODULE_DICTS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TENSOR_DICTS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@contextmanager
def paused(model: nn.Module) -> Iterator[None]:
    """Take every hook of this package off a model for a block: for export, scripting or a profiler run.

    Args:
        model: the watched model, a part of it, or what holds it.

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
        model: the root.

    Raises:
        HooksLeftError: with the names of the modules and parameters that carry one.

    Example:
        >>> assert_no_hooks(nn.Linear(1, 1))
    """
    left = [f"module {name or '(root)'}" for name, module in model.named_modules() if _carries(module, _MODULE_DICTS)]
    left += [f"parameter {name}" for name, parameter in model.named_parameters() if _carries(parameter, _TENSOR_DICTS)]
    if left:
        raise HooksLeftError(f"hooks of lightning_hooks are left on {', '.join(left)}")


def _carries(holder: Any, dicts: Sequence[str]) -> bool:
    return any(isinstance(hook, OurHook) for name in dicts for hook in (getattr(holder, name, None) or {}).values())


def match(model: nn.Module, rules: Sequence[Watch | Apply | Mapping[str, Any]]) -> Match:
    """What rules would match in a model, without training; ends with an error where training would.

    Args:
        model: the root.
        rules: watch and apply rules; a mapping with `transform` is an `Apply`, any other a `Watch`.

    Raises:
        RuleError: a rule that cannot be meant, or matches nothing.

    Example:
        >>> print(match(nn.Sequential(nn.Linear(2, 1)), [Watch(params="*.bias", tensors="grad", stats="norm")]).names)
        ['0.bias']
    """
    rules = [rules] if isinstance(rules, (Watch, Apply, Mapping)) else list(rules)
    applies = [r for r in rules if isinstance(r, Apply) or (isinstance(r, Mapping) and "transform" in r)]
    watches = [r for r in rules if not any(r is other for other in applies)]
    plan = resolve(model, as_rules(Watch, watches, "watch"), EveryN()) if watches else None
    links = resolve_links(model, as_rules(Apply, applies, "apply")) if applies else []
    lines = (plan_report(plan) if plan else []) + links_report(links)
    return Match(lines)
