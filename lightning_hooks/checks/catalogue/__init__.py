"""The checks of the package, one file for each family."""

from __future__ import annotations

from typing import Final

from lightning_hooks.checks.catalogue import (
    accumulation,
    derivatives,
    inputs,
    labels,
    losses,
    membership,
    movement,
    outputs,
    overfitting,
    samples,
    sequences,
    settings,
    structure,
)
from lightning_hooks.checks.check import Check

_FILES: Final = (
    *(membership, movement, outputs, samples, sequences, inputs, labels, losses, structure, settings, accumulation),
    *(overfitting, derivatives),
)
_FIRST: Final = ("StepRuns", "LabelsFitHead")
"""The checks that explain why others could not run."""

DEFAULT_CHECKS: Final[tuple[Check, ...]] = tuple(
    sorted((check for file in _FILES for check in file.CHECKS), key=lambda check: (*_FIRST, check.name).index(check.name))
)
"""All checks in the order in which they run; `OverfitsBatch` and `GradientsAreRight` are off."""


def checks_by_name() -> dict[str, Check]:
    """The checks of the package by name."""
    return {check.name: check for check in DEFAULT_CHECKS}
