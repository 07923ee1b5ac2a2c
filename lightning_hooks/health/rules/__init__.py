"""The rules of the package, one file for each family."""

from __future__ import annotations

from typing import Final

from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules import activations, facts, gradients, initialisation, loss, numerics, targets, units, updates

DEFAULT_RULES: Final[tuple[HealthRule, ...]] = (
    *facts.RULES,
    *numerics.RULES,
    *loss.RULES,
    *targets.RULES,
    *gradients.RULES,
    *updates.RULES,
    *activations.RULES,
    *initialisation.RULES,
    *units.RULES,
)
"""The rules of a `HealthMonitor` that is given none."""


def rules_by_name() -> dict[str, HealthRule]:
    """The default rules by name."""
    return {rule.name: rule for rule in DEFAULT_RULES}
