"""The rules of the package, one file for each family."""

from __future__ import annotations

from typing import Final

from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules import (
    activations,
    batches,
    between,
    buffers,
    calls,
    copies,
    data,
    dead,
    facts,
    first_loss,
    flow,
    gradients,
    initialisation,
    inputs,
    loss,
    loss_inputs,
    membership,
    modes,
    noise,
    nonfinite,
    numerics,
    order,
    pace,
    registration,
    resume,
    schedules,
    settings,
    sharing,
    targets,
    teachers,
    ties,
    units,
    updates,
    waiting,
    zeros,
)

_FILES: Final = (
    *(membership, registration, order, schedules, settings, ties, sharing, resume, copies, flow, zeros, calls),
    *(
        modes,
        buffers,
        teachers,
        facts,
        loss_inputs,
        nonfinite,
        numerics,
        loss,
        first_loss,
        targets,
        batches,
        data,
        waiting,
        gradients,
        noise,
        updates,
        pace,
        between,
        dead,
        activations,
        initialisation,
        inputs,
        units,
    ),
)

DEFAULT_RULES: Final[tuple[HealthRule, ...]] = tuple(rule for file in _FILES for rule in file.RULES)
"""The rules of a `HealthMonitor` that is given none. Facts come first: a cause takes its findings in this order."""


def rules_by_name() -> dict[str, HealthRule]:
    """The default rules by name."""
    return {rule.name: rule for rule in DEFAULT_RULES}
