"""The health rules of a plain loop: what they watch, and where they tell what they find."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from lightning_hooks.engine.inspecting.good_runs import rules_of_reference
from lightning_hooks.errors import RuleError, shown
from lightning_hooks.health.actions import Actions
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.reference.causes import CAUSES_WITH_REFERENCE
from lightning_hooks.health.reporter import Reporter
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules.reading import as_health_rules
from lightning_hooks.health.terminal import block_for, line_for
from lightning_hooks.health.text import Block
from lightning_hooks.health.watching import fields_of_watch
from lightning_hooks.rules import Watch

_OF_OPTIMIZER: Final = frozenset({"final_grad", "update"})


class LoopOutlet:
    """The outlet of a reporter in a plain loop: standard error.

    Args:
        focus: makes the monitor measure at every one of the next steps.
    """

    def __init__(self, focus: Callable[[int], None]) -> None:
        self._focus = focus

    def tell(self, block: Block) -> None:
        """Print a block."""
        print(block_for(block, sys.stderr), file=sys.stderr, flush=True)

    def tell_line(self, line: str) -> None:
        """Print text."""
        print(line_for(line, sys.stderr), file=sys.stderr, flush=True)

    def show(self, text: str, step: int) -> None:
        """Do nothing: a plain loop has no loggers."""

    def keep(self, summary: Mapping[str, Any], step: int) -> None:
        """Do nothing: a plain loop has no event file."""

    def focus(self, steps: int) -> None:
        """Measure at every one of the next steps."""
        self._focus(steps)


def loop_rules(health: Any, reference: Any = None) -> list[HealthRule] | None:
    """The health rules of `instrument(health=…, reference=…)`; None for none.

    Raises:
        RuleError: `health` is neither a bool nor rules, or `reference` is no run, or given without `health`.
    """
    if health is False or health is None:
        if reference is not None:
            raise RuleError("reference needs health rules: give health=True too, or health=[] to compare and nothing else")
        return None
    if isinstance(health, (int, str)) and health is not True:
        raise RuleError(f"health must be True, or the rules of HealthMonitor(rules=…), got {shown(health)}")
    return as_health_rules(None if health is True else health, rules_of_reference(reference))


def watch_rules(rules: list[HealthRule], *, has_optimizer: bool, has_units: bool) -> list[Watch]:
    """What a loop has to watch for health rules; `final_grad` and `update` only where an optimizer is known."""
    listed = fields_of_watch(rules, has_units=has_units)
    return [Watch(**fields) for fields in listed if has_optimizer or _OF_OPTIMIZER.isdisjoint(fields["tensors"])]


def loop_reporter(rules: list[HealthRule], focus: Callable[[int], None]) -> Reporter:
    """The reporter of a plain loop."""
    return Reporter(Diagnosis(rules, causes=CAUSES_WITH_REFERENCE), Actions.read(None), LoopOutlet(focus))
