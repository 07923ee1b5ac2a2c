"""Runs `check` on a pattern of the gallery and compares what it says with what is expected."""

from __future__ import annotations

import fnmatch
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer

from galleries.checks.case import Expected, Fit, Pattern, Plain
from galleries.checks.state import differing, state_of
from lightning_hooks import check

ALARMS = ("warn", "fail")


@dataclass(frozen=True)
class Said:
    """A result that is no pass."""

    check: str
    status: str
    rows: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Verdict:
    """What was said of a pattern.

    Args:
        alarms: the results with the status "warn" or "fail".
        skipped: those with the status "skip".
        seconds: all checks took together.
        error: the error that ended `check`; empty if there was none.
        changed: the names of what is not as it was before.
    """

    alarms: tuple[Said, ...]
    skipped: tuple[Said, ...]
    seconds: float
    error: str = ""
    changed: tuple[str, ...] = ()


def judged(pattern: Pattern) -> Verdict:
    """Build a pattern and check it."""
    case = pattern.build()
    before = _state(case)
    try:
        results = checked(case).results
    except Exception as failure:
        return Verdict((), (), 0.0, f"{type(failure).__name__}: {failure}")
    said = [Said(each.check, each.status, tuple(each.rows), each.message) for each in results]
    return Verdict(
        tuple(each for each in said if each.status in ALARMS),
        tuple(each for each in said if each.status == "skip"),
        sum(each.seconds for each in results),
        changed=tuple(differing(before, _state(case))),
    )


def checked(case: Plain | Fit) -> Any:
    """The report of `check`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(case, Fit):
            return check(trainer_of(case), case.module, case.loader, **case.options)
        return check(case.model, (case.inputs, case.targets), loss=case.loss, optimizer=case.optimizer, **case.options)


def _state(case: Plain | Fit) -> dict[str, Any]:
    if isinstance(case, Fit):
        return state_of(case.module)
    return state_of(case.model, [case.optimizer], (case.inputs, case.targets))


def trainer_of(case: Fit, **changes: Any) -> Trainer:
    """A quiet Trainer on the CPU that writes no files."""
    options: dict[str, Any] = {
        "max_steps": 4,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": tempfile.gettempdir(),
    }
    return Trainer(**{**options, **case.trainer, **changes})


def naming(expected: Expected, alarms: Iterable[Said]) -> list[Said]:
    """Those alarms that name what is expected: the check, a status at least as grave, and the place."""
    gravest = ALARMS[ALARMS.index(expected.status) :]
    return [
        each
        for each in alarms
        if each.check in expected.checks
        and each.status in gravest
        and (expected.rows == "*" or any(fnmatch.fnmatchcase(row, expected.rows) for row in each.rows))
    ]
