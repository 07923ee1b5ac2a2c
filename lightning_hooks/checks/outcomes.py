"""The results of checks as outcomes, from which SARIF and JUnit files are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lightning_hooks.checks.check import Check
from lightning_hooks.checks.result import CheckReport, CheckResult, Status
from lightning_hooks.health.outcome import Level, Outcome, Report, RuleText, summary_of_class
from lightning_hooks.health.outcome import Status as OutcomeStatus

_STATUSES: Final[Mapping[Status, tuple[OutcomeStatus, Level]]] = {
    "pass": ("passed", "note"),
    "warn": ("noted", "warning"),
    "fail": ("failed", "error"),
    "skip": ("skipped", "note"),
}


def report_of_checks(name: str, report: CheckReport, checks: Iterable[Check]) -> Report:
    """The outcomes of checks. A warning is no failure, as for the exit code of `lightning-hooks check`.

    Args:
        name: of what was checked, such as its config.
        report: the results.
        checks: whose words are in the report.

    Example:
        >>> report = CheckReport((CheckResult("FrozenStay", status="fail", rows=("fc.bias",), message="fc.bias moved"),))
        >>> report_of_checks("config.yaml", report, []).outcomes[0].status
        'failed'
    """
    return Report(name, tuple(map(_outcome, report.results)), words_of_checks(checks))


def words_of_checks(checks: Iterable[Check]) -> tuple[RuleText, ...]:
    """What each check looks for."""
    return tuple(RuleText(each.name, summary_of_class(type(each)), each.next_steps, each.source, "error") for each in checks)


def _outcome(result: CheckResult) -> Outcome:
    status, level = _STATUSES[result.status]
    plain = result.to_dict()
    facts: dict[str, Any] = {key: plain[key] for key in ("measured", "threshold") if plain[key] is not None}
    return Outcome(result.check, status, result.message, level, result.rows, (), result.next_steps, result.fingerprint, facts)
