"""Checks the first batch of a fit that goes on afterwards, as a `HealthMonitor` does."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lightning_hooks.callbacks._terminal import print_above
from lightning_hooks.callbacks._trainer import current_step, is_quick
from lightning_hooks.callbacks._trainer_training import TrainerTraining
from lightning_hooks.checks.engine import run_checks
from lightning_hooks.checks.reading import as_checks
from lightning_hooks.checks.result import CheckReport
from lightning_hooks.engine import paused
from lightning_hooks.errors import RuleError, printable, shown
from lightning_hooks.health.finding import Finding
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.whole_files import write_whole

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer

REPORT: Final = "check.json"
"""The file in the folder of a run."""


class Checked(NamedTuple):
    """What the checks of a first batch found.

    Args:
        findings: one for each check that warns or fails.
        judged: the names of the checks that were not skipped.
    """

    findings: list[Finding]
    judged: list[str]


class FirstBatch:
    """Runs checks on the first batch of each fit, on the first rank.

    Args:
        checks: True for all that are on, False for none; otherwise as of `check`.
        accept: patterns of results that are no problem.
        rules: the health rules of the run, whose thresholds the checks with their names take over.

    Attributes:
        names: of the checks.
        report: of the current fit, or of the last one; None if no check ran on this rank.

    Raises:
        RuleError: an unknown check or field.
    """

    def __init__(
        self, checks: bool | Mapping[str, Any] | Sequence[Any], accept: Sequence[str], rules: Sequence[HealthRule] = ()
    ) -> None:
        if checks is None or isinstance(checks, str):
            raise RuleError(f"check_first_batch must be True, False, a list of checks or a mapping, got {shown(checks)}")
        self._checks = [] if checks is False else as_checks(None if checks is True else checks, rules)
        self._accept = list(accept)
        self._is_due = False
        self.names = [check.name for check in self._checks]
        self.report: CheckReport | None = None

    def begin_fit(self) -> None:
        """Check the next batch."""
        self._is_due, self.report = bool(self._checks), None

    def check(self, trainer: Trainer, module: LightningModule, batch: Any, folder: Path | None) -> Checked | None:
        """Check a batch on the first rank if it is the first one of a fit. A collective then, in which all ranks take part.

        Args:
            trainer: of the fit.
            module: its module.
            batch: on the device of the module; a copy is trained.
            folder: where to write the report; None for nowhere.

        Returns:
            What was found, the same on all ranks; None if the batch is not the first one, or the checks raised an error.
        """
        if not self._is_due:
            return None
        self._is_due = False
        checked = None
        if trainer.is_global_zero:
            self.report = self._run(trainer, module, batch)
            if self.report is not None:
                checked = _checked(self.report, current_step(trainer))
                if folder is not None and not is_quick(trainer):
                    folder.mkdir(parents=True, exist_ok=True)
                    write_whole(folder / REPORT, self.report.to_json())
        return trainer.strategy.broadcast(checked) if trainer.world_size > 1 else checked

    def _run(self, trainer: Trainer, module: LightningModule, batch: Any) -> CheckReport | None:
        with paused(module):
            try:
                return run_checks(TrainerTraining(trainer, module), batch, self._checks, self._accept)
            # An error of a check is none of the training, which goes on from the restored state.
            except Exception as error:
                said = printable(f"{type(error).__name__}: {error}")
                warnings.warn(f"the checks of the first batch ended with {said}; training continues", stacklevel=3)
                return None

    def show(self, trainer: Trainer) -> None:
        """Print what warns or fails above the progress bar, in a fit without a health rule, which would print it."""
        faults = tuple(each for each in self.report or () if each.status in ("fail", "warn"))
        if self.report is not None and faults:
            text = f"Checks of the first batch: {self.report.verdict}.\n{CheckReport(faults, notes=self.report.notes).table}"
            print_above(trainer, lambda _: text)


def _checked(report: CheckReport, step: int) -> Checked:
    judged = [each.check for each in report if each.status != "skip"]
    return Checked([_at_step(finding, step) for finding in report.findings], judged)


def _at_step(finding: Finding, step: int) -> Finding:
    symptoms = tuple(replace(symptom, step=step) for symptom in finding.evidence)
    return replace(finding, first_step=step, last_step=step, evidence=symptoms)
