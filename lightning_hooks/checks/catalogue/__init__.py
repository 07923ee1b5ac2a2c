"""The checks of the package, one file for each family."""

from __future__ import annotations

from typing import Final

from lightning_hooks.checks.catalogue import (
    derivatives,
    inputs,
    losses,
    membership,
    movement,
    outputs,
    overfitting,
    samples,
    sequences,
    structure,
)
from lightning_hooks.checks.check import Check

DEFAULT_CHECKS: Final[tuple[Check, ...]] = (
    *movement.CHECKS[:1],
    *losses.CHECKS[:1],
    *membership.CHECKS,
    *movement.CHECKS[1:],
    *outputs.CHECKS,
    *samples.CHECKS,
    *sequences.CHECKS,
    *inputs.CHECKS,
    *losses.CHECKS[1:],
    *structure.CHECKS,
    *overfitting.CHECKS,
    *derivatives.CHECKS,
)
"""All checks in the order in which they run; `OverfitsBatch` and `GradientsAreRight` are off."""


def checks_by_name() -> dict[str, Check]:
    """The checks of the package by name."""
    return {check.name: check for check in DEFAULT_CHECKS}
