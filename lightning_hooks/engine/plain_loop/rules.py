"""The rules of a plain loop: those that were given, the default ones, and those that health rules need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from lightning_hooks.engine.plain_loop.checks import refuse_other_stages, without_optimizer
from lightning_hooks.engine.plain_loop.health import loop_rules, watch_rules
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.plan.defaults import DEFAULT_WATCH
from lightning_hooks.rules import Apply, Hook, Watch
from lightning_hooks.rules.reading import as_rules


class LoopRules(NamedTuple):
    """The rules of an `instrument` block; `health` is None if nothing is diagnosed."""

    watch: list[Watch]
    apply: list[Apply]
    hooks: list[Hook]
    health: list[HealthRule] | None


def read_rules(
    watch: Any,
    apply: Any,
    hooks: Any,
    health: Any,
    reference: Any = None,
    *,
    has_optimizer: bool,
    writes: bool,
    has_units: bool = True,
) -> LoopRules:
    """Read the rules of a plain loop.

    Args:
        watch: as of `instrument`; None for the default rules, if there is nothing else to do or an event file is written.
        apply: as of `instrument`.
        hooks: as of `instrument`.
        health: as of `instrument`.
        reference: as of `instrument`.
        has_optimizer: whether optimizers are given.
        has_units: whether units can be measured.
        writes: whether an event file is written.

    Raises:
        RuleError: a rule is invalid, or needs an optimizer.
    """
    applies, hook_rules = as_rules(Apply, apply, "apply"), as_rules(Hook, hooks, "hooks")
    refuse_other_stages(applies, hook_rules)
    health_rules = loop_rules(health, reference)
    if watch is None:
        is_default = writes or not (applies or hook_rules or health_rules)
        rules = list(_defaults(has_optimizer)) if is_default else []
    else:
        rules = as_rules(Watch, watch, "watch")
    if not has_optimizer:
        rules = without_optimizer(rules, applies, hook_rules)
    if health_rules is not None:
        rules = [*rules, *watch_rules(health_rules, has_optimizer=has_optimizer, has_units=has_units)]
    return LoopRules(rules, applies, hook_rules, health_rules)


def _defaults(has_optimizer: bool) -> Sequence[Watch]:
    """What `StatsMonitor()` watches. Without an optimizer, a rule without `tensors` gets those that exist without one."""
    modules, params = DEFAULT_WATCH
    return modules, params if has_optimizer else replace(params, tensors=None)
