"""Fits of healthy patterns with and without a check of the first batch."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback

from galleries.checks.case import Fit, Pattern
from galleries.checks.catalogue import healthy
from galleries.checks.judge import trainer_of
from galleries.checks.state import differing, state_of
from lightning_hooks import HealthMonitor


def fits() -> list[Pattern]:
    """The healthy patterns that Lightning trains."""
    return [pattern for pattern in healthy() if isinstance(pattern.build(), Fit)]


def changed_by_check(pattern: Pattern) -> list[str]:
    """The names of what is not bit for bit the same after a fit of four steps whose first batch was checked."""
    alone = _trained(pattern, [])
    return differing(alone, _trained(pattern, [HealthMonitor(check_first_batch=True)]))


def _trained(pattern: Pattern, callbacks: Sequence[Callback]) -> dict[str, Any]:
    case = pattern.build()
    assert isinstance(case, Fit)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = trainer_of(case, callbacks=[*callbacks], default_root_dir=folder)
        trainer.fit(case.module, case.loader)
    return state_of(case.module, trainer.optimizers)
