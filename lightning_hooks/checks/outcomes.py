"""The results of checks as outcomes, from which JUnit files are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lightning_hooks.checks.result import CheckReport, CheckResult, Status
from lightning_hooks.health.outcome import Outcome, Report
from lightning_hooks.health.outcome import Status as OutcomeStatus
from lightning_hooks.health.rule import Severity

_STATUSES: Final[Mapping[Status, tuple[OutcomeStatus, Severity]]] = {
    "pass": ("passed", Severity.INFO),
    "warn": ("noted", Severity.WARNING),
    "fail": ("failed", Severity.CRITICAL),
    "skip": ("skipped", Severity.INFO),
}


def report_of_checks(name: str, report: CheckReport) -> Report:
    """The outcomes of checks. A warning is no failure, as for the exit code of `lightning-hooks check`.

    Args:
        name: of what was checked, such as its config.
        report: the results.

    Example:
        >>> report = CheckReport((CheckResult("FrozenMoves", status="fail", rows=("fc.bias",), message="fc.bias moved"),))
        >>> report_of_checks("config.yaml", report).outcomes[0].status
        'failed'
    """
    return Report(name, tuple(map(_outcome, report.results)))


def _outcome(result: CheckResult) -> Outcome:
    status, severity = _STATUSES[result.status]
    return Outcome(result.check, status, result.message, severity, result.rows, (), result.next_steps)
