"""Reads the health rules that a user chose: all default ones, some by name, and their thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from lightning_hooks.errors import RuleError, did_you_mean, shown
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules import rules_by_name
from lightning_hooks.rules.reading import as_object


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
        changed = {_known_name(name, known, "rules"): value for name, value in rules.items()}
        return [_changed(rule, changed.get(name, {}), f"rules[{name!r}]") for name, rule in known.items()]
    if not isinstance(rules, Sequence) or isinstance(rules, (str, bytes)):
        raise RuleError(f"rules must be a list of health rules, or map names of rules to their fields, got {shown(rules)}")
    chosen = [_rule(each, known, f"rules[{i}]") for i, each in enumerate(rules)]
    names = {rule.name for rule in chosen}
    return [*chosen, *(rule for rule in more if rule.name not in names)]


def _rule(rule: Any, known: Mapping[str, HealthRule], where: str) -> HealthRule:
    if isinstance(rule, HealthRule):
        return rule
    if isinstance(rule, str):
        return replace(known[_known_name(rule, known, where)], is_on=True)
    if isinstance(rule, Mapping) and len(rule) == 1 and "class_path" not in rule:
        ((name, changes),) = rule.items()
        return _changed(known[_known_name(name, known, where)], changes, f"{where}[{name!r}]")
    made: HealthRule = as_object(rule, where, lambda kind: issubclass(kind, HealthRule), "a class of a health rule")
    if not isinstance(made, HealthRule):
        raise RuleError(f"{where} must be a health rule, the name of one, or a mapping, got {shown(rule)}")
    return made


def _known_name(name: Any, known: Mapping[str, HealthRule], where: str) -> str:
    if name not in known:
        raise RuleError(f"{where}: there is no health rule {shown(name)}{did_you_mean(name, known)}")
    return str(name)


def _changed(rule: HealthRule, changes: Any, where: str) -> HealthRule:
    if isinstance(changes, bool):
        return replace(rule, is_on=changes)
    if not isinstance(changes, Mapping):
        raise RuleError(f"{where} must be a mapping of fields, True or False, got {shown(changes)}")
    names = [field.name for field in fields(rule)]
    for name in changes:
        if name not in names:
            raise RuleError(f"{where}: unknown field {shown(name)}{did_you_mean(name, names)}; there are {', '.join(names)}")
    try:
        return replace(rule, **{"is_on": True, **changes}) if changes else rule
    except RuleError as error:
        raise RuleError(f"{where}: {error}") from error
