"""Reads the health rules that a user chose: all default ones, some by name, and their thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lightning_hooks.health.choice import Choice
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules import rules_by_name

_CHOICE: Final = Choice(HealthRule, "rules", "health rule")


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
    chosen = _CHOICE.read(rules, {**rules_by_name(), **{rule.name: rule for rule in more}})
    names = {rule.name for rule in chosen}
    return [*chosen, *(rule for rule in more if rule.name not in names)]
