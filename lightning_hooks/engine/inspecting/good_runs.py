"""The health rules that compare a training with good runs, which are read from their event files."""

from __future__ import annotations

from typing import Any

from lightning_hooks.health.reference.rules import reference_rules
from lightning_hooks.health.reference.sources import NEEDED, read_reference
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.tensorboard.best_views import best_views
from lightning_hooks.tensorboard.reading import read_run


def rules_of_reference(reference: Any) -> list[HealthRule]:
    """The rules that compare with good runs; none without a reference.

    Args:
        reference: the option of `HealthMonitor`: a folder, a list of folders, or a baseline; None for none.

    Raises:
        RuleError: the reference is no run, or cannot be read.
    """
    if reference is None:
        return []
    return [*reference_rules(read_reference(reference, lambda path: best_views(read_run(path), NEEDED)))]
