"""Reads the checks that a user chose: all that are on, some by name, their thresholds, and what is accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from lightning_hooks.checks.catalogue import checks_by_name
from lightning_hooks.checks.check import Check
from lightning_hooks.errors import RuleError, did_you_mean, shown
from lightning_hooks.health.accepting import FILE_HINT, Accept, accepted_patterns
from lightning_hooks.health.choice import Choice
from lightning_hooks.health.reference.rules import REFERENCE_RULES
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules import rules_by_name

_CHOICE: Final = Choice(Check, "checks", "check")


def as_checks(checks: Any, rules: Iterable[HealthRule] = ()) -> list[Check]:
    """The checks to run.

    Args:
        checks: None for all checks that are on; a mapping from names to changed fields, or to True or False, where all other
            checks stay as they are; or a list of checks, names, and mappings with `class_path` and `init_args`, where no other
            check runs.
        rules: the health rules of the same run. A check with the name of one has its thresholds, and is off if the rule is.

    Raises:
        RuleError: an unknown check or field, or an invalid value.

    Example:
        >>> [check.name for check in as_checks(["FrozenMoves", "OverfitsBatch"])]
        ['FrozenMoves', 'OverfitsBatch']
    """
    by_name = {rule.name: rule for rule in rules}
    chosen = _CHOICE.read(checks, {name: _as_its_rule(check, by_name.get(name)) for name, check in checks_by_name().items()})
    names = [check.name for check in chosen]
    for name in names:
        if names.count(name) > 1:
            raise RuleError(f"checks: {name} is there twice")
    return [check for check in chosen if check.enabled]


def as_accepted(accept: Accept, checks: Sequence[Check]) -> list[str]:
    """Patterns of results that are known and no problem: `BiasBeforeNorm/net.*`, the name of a check, or files of these.

    Patterns of health rules are taken too, so that one file serves the checks and the run.

    Raises:
        RuleError: a pattern names neither a check nor a health rule, or a file cannot be read.
    """
    patterns = accepted_patterns(accept)
    names = list(dict.fromkeys([*checks_by_name(), *(check.name for check in checks), *rules_by_name(), *REFERENCE_RULES]))
    for pattern in patterns:
        name = pattern.partition("/")[0]
        if "*" not in name and name not in names:
            hint = f"; {FILE_HINT.format(name)}" if name.endswith(".txt") else did_you_mean(name, names)
            raise RuleError(f"accept: there is no check {shown(name)}{hint}")
    return patterns


def _as_its_rule(check: Check, rule: HealthRule | None) -> Check:
    """A check with the values of the fields that it has in common with the rule of its name."""
    if rule is None:
        return check
    common = {field.name for field in fields(check)} & {field.name for field in fields(rule)} - {"enabled"}
    return replace(check, enabled=check.enabled and rule.enabled, **{name: getattr(rule, name) for name in common})
