"""What a diagnosis keeps of each of its rules: what the rule has judged, its streaks, and when it looks next."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.streaks import Streaks

NEVER: Final = 2**62
"""A step that no run reaches."""
_SHORT: Final = 5
"""The longest interval of rules that must tell within five steps."""
_UNDER_WAY: Final = 200
"""The step from which on rules with a longer interval look half as often."""


@dataclass(slots=True)
class RuleState:
    """What a diagnosis keeps of a rule.

    Args:
        rule: the rule.
        streaks: where its condition holds.
        looks_between: as of the rule.
        sights: the kinds of sightings that the rule tells, if sightings are all that it reads; else empty.
        judged: the last step that it has judged; -1 before the first.
        due: the step at which it looks next.
    """

    rule: HealthRule
    streaks: Streaks
    looks_between: bool
    sights: tuple[str, ...]
    judged: int = -1
    due: int = 0

    @classmethod
    def of(cls, rule: HealthRule) -> RuleState:
        """The state of a rule that has not looked yet."""
        return cls(rule, Streaks(rule), rule.looks_between, rule.looks_for if rule.only_sights else ())


def plan_looks(states: Iterable[RuleState], failed: Container[str] = ()) -> None:
    """Note the step at which each rule looks next: the last one of its next interval.

    A rule with a short interval looks at the next step if its condition holds somewhere, but not yet for long enough. One with
    a long interval looks half as often once the training is under way: a look takes as long as some hundred hooks.

    Args:
        states: of the rules.
        failed: the names of rules that never look again.

    Example:
        >>> state = RuleState.of(HealthRule(every_n_steps=20))
        >>> plan_looks([state])
        >>> state.due
        19
    """
    for each in states:
        judged, every = each.judged, each.rule.every_n_steps
        if each.rule.name in failed:
            each.due = NEVER
        elif every <= _SHORT and each.streaks.is_undecided:
            each.due = judged + 1
        else:
            if every > _SHORT and judged >= _UNDER_WAY:
                every *= 2
            each.due = ((judged + 1) // every + 1) * every - 1
