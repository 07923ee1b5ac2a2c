"""Checks the first batch of a fit that goes on afterwards, as a `HealthMonitor` does."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lightning_hooks.callbacks._lightning_training import LightningTraining
from lightning_hooks.callbacks._terminal import print_above
from lightning_hooks.checks.engine import run_checks
from lightning_hooks.checks.reading import as_checks
from lightning_hooks.checks.result import CheckReport
from lightning_hooks.engine import paused
from lightning_hooks.errors import RuleError, printable, shown

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer

REPORT: Final = "check.json"
"""The file in the folder of a run."""


class FirstBatch:
    """Runs checks on the first batch of each fit, on the first rank.

    Args:
        checks: True for all that are on, False for none; otherwise as of `check`.
        accept: patterns of results that are no problem.

    Attributes:
        names: of the checks.
        report: of the current fit, or of the last one; None if no check ran on this rank.

    Raises:
        RuleError: an unknown check or field.
    """

    def __init__(self, checks: bool | Mapping[str, Any] | Sequence[Any], accept: Sequence[str]) -> None:
        if checks is None or isinstance(checks, str):
            raise RuleError(f"check_first_batch must be True, False, a list of checks or a mapping, got {shown(checks)}")
        self._checks = [] if checks is False else as_checks(None if checks is True else checks)
        self._accept = list(accept)
        self._is_due = False
        self.names = [check.name for check in self._checks]
        self.report: CheckReport | None = None

    def begin_fit(self) -> None:
        """Check the next batch."""
        self._is_due, self.report = bool(self._checks), None

    def check(self, trainer: Trainer, module: LightningModule, batch: Any, folder: Path | None) -> None:
        """Check a batch if it is the first one of a fit, and tell what warns or fails.

        Args:
            trainer: of the fit.
            module: its module.
            batch: on the device of the module; a copy is trained.
            folder: where to write the report; None for nowhere.
        """
        if not self._is_due:
            return
        self._is_due = False
        if not trainer.is_global_zero:
            return
        with paused(module):
            try:
                self.report = run_checks(LightningTraining(trainer, module, batch), self._checks, self._accept)
            # An error of a check is none of the training, which goes on from the restored state.
            except Exception as error:
                said = printable(f"{type(error).__name__}: {error}")
                warnings.warn(f"the checks of the first batch ended with {said}; training continues", stacklevel=2)
                return
        self._tell(self.report, trainer, folder)

    def _tell(self, report: CheckReport, trainer: Trainer, folder: Path | None) -> None:
        faults = tuple(each for each in report.results if each.status in ("fail", "warn"))
        if faults:
            text = f"Checks of the first batch: {report.verdict}.\n{CheckReport(faults, report.notes).table}"
            print_above(trainer, lambda _: text)
        if folder is not None and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / REPORT).write_text(report.to_json(), encoding="utf-8")
