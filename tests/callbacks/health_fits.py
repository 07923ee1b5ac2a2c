"""A fit in which a `HealthMonitor` finds something."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from lightning_hooks import HealthMonitor, StatsMonitor
from tests.callbacks.models import data, trainer_of
from tests.callbacks.test_health import Forgotten, rules_of


def fit(folder: Path, monitor: HealthMonitor, model: Any = None, **options: Any) -> list[str]:
    """Fit ten steps in a folder of its own; returns the warnings of this package."""
    trainer = trainer_of(folder, StatsMonitor(loggers=[]), monitor, **options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(Forgotten() if model is None else model, data(10))
    assert trainer.global_step == 10 and "NotInOptimizer" in rules_of(monitor)
    paths = [(each, Path(each.filename).parts) for each in said]
    return [str(each.message) for each, parts in paths if "lightning_hooks" in parts or "site-packages" not in parts]
