"""Runs `check` on the healthy trainings of the health gallery, which were made for other rules."""

from __future__ import annotations

import warnings
from typing import Any

from galleries.checks.case import Fit
from galleries.checks.judge import ALARMS, trainer_of
from galleries.health.catalogue import healthy
from galleries.rules import CHECKS
from lightning_hooks import check


def held_records() -> list[dict[str, Any]]:
    """What `check` says of each training, as plain values."""
    lines = []
    for training in healthy():
        case = training.make(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = trainer_of(Fit(case.module, case.loader, trainer=case.trainer))
            report = check(trainer, case.module, case.loader)
        alarms = [[each.check, each.status] for each in report if each.status in ALARMS]
        lines.append({"name": training.name, "rules": CHECKS, "alarms": alarms})
    return lines
