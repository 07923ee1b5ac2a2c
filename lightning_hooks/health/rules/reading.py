"""Reads the health rules that a user chose: all default ones, some by name, and their thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules import rules_by_name
from lightning_hooks.rules.named import known_name, with_changes
from lightning_hooks.rules.reading import as_object

_WHAT: Final = "health rule"


def as_health_rules(rules: Any, more: Sequence[HealthRule] = ()) -> list[HealthRule]:
    """The rules of a monitor.

    Args:
        rules: None for the default rules; a mapping from names of default rules to changed fields, or to False for a rule that
            is not wanted, where all other default rules stay; or a list of rules, names of default rules, and mappings with
            `class_path` and `init_args`, where no other rule is used.
        more: rules that are used besides the default ones, and beside those of a list. A mapping may change them too.

    Raises:
        RuleError: an unknown rule or field, or an invalid value.

    Example:
        >>> [rule.name for rule in as_health_rules([])]
        []
    """
    known = {**rules_by_name(), **{rule.name: rule for rule in more}}
    if rules is None:
        return [*known.values()]
    if isinstance(rules, Mapping) and "class_path" not in rules:
        changed = {known_name(name, known, "rules", _WHAT): value for name, value in rules.items()}
        return [_changed(rule, changed.get(name, {}), f"rules[{name!r}]") for name, rule in known.items()]
    if not isinstance(rules, Sequence) or isinstance(rules, (str, bytes)):
        raise RuleError(f"rules must be a list of health rules, or map names of rules to their fields, got {shown(rules)}")
    chosen = [_rule(each, known, f"rules[{i}]") for i, each in enumerate(rules)]
    names = {rule.name for rule in chosen}
    return [*chosen, *(rule for rule in more if rule.name not in names)]


def _rule(rule: Any, known: Mapping[str, HealthRule], where: str) -> HealthRule:
    if isinstance(rule, HealthRule):
        return rule
    if isinstance(rule, type) and issubclass(rule, HealthRule):
        raise RuleError(f"{where} must be a health rule, got a class of one; write {rule.__name__}()")
    if isinstance(rule, str):
        return replace(known[known_name(rule, known, where, _WHAT)], enabled=True)
    if isinstance(rule, Mapping) and len(rule) == 1 and "class_path" not in rule:
        ((name, changes),) = rule.items()
        return _changed(known[known_name(name, known, where, _WHAT)], changes, f"{where}[{name!r}]")
    made: HealthRule = as_object(rule, where, lambda kind: issubclass(kind, HealthRule), "a class of a health rule")
    if not isinstance(made, HealthRule):
        raise RuleError(f"{where} must be a health rule, the name of one, or a mapping, got {shown(rule)}")
    return made


def _changed(rule: HealthRule, changes: Any, where: str) -> HealthRule:
    return rule if isinstance(changes, Mapping) and not changes else with_changes(rule, changes, where)
