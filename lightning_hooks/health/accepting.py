"""Accepting: which findings a user knows and takes for no problem, by patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lightning_hooks.errors import RuleError, did_you_mean, shown


def is_accepted(patterns: Iterable[str], rule: str, row: str) -> bool:
    """Whether a pattern accepts signs of a rule at a row. `*` stands for any text; a rule alone accepts all its rows.

    Example:
        >>> is_accepted(["DeadUnits/encoder.*"], "DeadUnits", "encoder.3"), is_accepted(["LossSpike"], "DeadUnits", "fc")
        (True, False)
    """
    names = (rule, f"{rule}/{row}")
    return any(_glob(pattern, name) for pattern in patterns for name in names)


def refuse_unknown_rules(patterns: Iterable[str], rules: Sequence[str], where: str = "accept") -> None:
    """Refuse patterns of findings that name no rule.

    Args:
        patterns: as of `is_accepted`.
        rules: the names of the rules.
        where: the option in messages.

    Raises:
        RuleError: no rule has the name that stands before the slash.
    """
    for pattern in patterns:
        name = pattern.partition("/")[0]
        if any(_glob(name, rule) for rule in rules):
            continue
        if "*" in name:
            raise RuleError(f"{where}: no health rule matches {shown(name)}; there are {', '.join(rules)}")
        raise RuleError(f"{where}: there is no health rule {shown(name)}{did_you_mean(name, rules)}")


def _glob(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
