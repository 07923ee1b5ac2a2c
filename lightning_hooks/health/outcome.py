"""Outcomes: what each rule says of a run, in the form that JUnit files are written from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from lightning_hooks.health.finding import Cause, Finding, stands
from lightning_hooks.health.journal import RunFindings
from lightning_hooks.health.row_names import user_name
from lightning_hooks.health.rule import Severity

Status = Literal["passed", "noted", "failed", "skipped", "broken"]


class Outcome(NamedTuple):
    """What one rule says about some rows, or about the whole run.

    Args:
        rule: the name of the rule or check.
        status: `failed` if a user must act, `noted` if something was found that is no failure, `skipped` if the rule could not
            look, `broken` if the rule itself raised an error.
        message: what is wrong, or why the rule was skipped; empty if it passed.
        severity: of the finding, the same as in the terminal and in the files of the run.
        rows: the names of modules or parameters; none for the whole run.
        reasons: the numbers, one sentence each.
        next_steps: what to try.
    """

    rule: str
    status: Status
    message: str = ""
    severity: Severity = Severity.INFO
    rows: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()

    def text(self) -> str:
        """The message, the reasons and the next steps, one line each."""
        return "\n".join([self.message, *self.reasons, *(f"Next: {step}" for step in self.next_steps)])


class Report(NamedTuple):
    """The outcomes of one run of rules or checks.

    Args:
        name: of the run, such as its folder.
        outcomes: one or several for each rule.
        problem: why the outcomes are incomplete; empty if they are complete.
    """

    name: str
    outcomes: tuple[Outcome, ...]
    problem: str = ""


def report_of_run(name: str, known: RunFindings, findings: Iterable[Finding]) -> Report:
    """The outcomes of a fit: its findings, and every rule that found nothing or could not look.

    Args:
        name: of the run.
        known: what its journal says.
        findings: those to report, some or all of `known.findings`.

    Example:
        >>> summary = {"ran": ["LossSpike"], "could_not_run": {"DeadUnits": "no row has `output`"}}
        >>> known = RunFindings([], [], [], summary, has_ended=True, fit=1)
        >>> [(each.rule, each.status, each.message) for each in report_of_run("runs/a", known, []).outcomes]
        [('LossSpike', 'passed', ''), ('DeadUnits', 'skipped', 'no row has `output`')]
    """
    causes = {number: cause for cause in known.causes for number in cause.numbers}
    outcomes = [outcome_of_finding(finding, causes.get(finding.number)) for finding in findings]
    summary = known.summary or {}
    told = {outcome.rule for outcome in outcomes}
    outcomes += [Outcome(str(rule), "passed") for rule in _entries(summary, "ran", list) if rule not in told]
    outcomes += [
        Outcome(str(rule), "skipped", str(why))
        for rule, why in _entries(summary, "could_not_run", dict).items()
        if rule not in told
    ]
    outcomes += [Outcome(str(rule), "broken", str(why)) for rule, why in _entries(summary, "failed", dict).items()]
    return Report(name, tuple(outcomes), _problem(known))


def outcome_of_finding(finding: Finding, cause: Cause | None = None) -> Outcome:
    """What a finding says; its cause becomes the first reason, and gives the next steps."""
    quoted = [f"{user_name(each.row)}, step {each.step}: {each.text}" if each.row else each.text for each in finding.evidence]
    reasons = [*dict.fromkeys(quoted)][:3] + [each for each in (finding.line, finding.learning) if each]
    message = finding.message
    if finding.is_over is not None:
        message = f"{message} Over since step {finding.is_over}."
    if cause is not None:
        reasons.insert(0, f"Cause: {cause.name} ({cause.confidence}). {cause.message}")
    is_failure = stands(finding)
    return Outcome(
        finding.rule,
        "failed" if is_failure else "noted",
        message,
        finding.severity,
        tuple(filter(None, finding.rows)),
        tuple(reasons),
        tuple(dict.fromkeys([*(cause.next_steps if cause is not None else ()), *finding.next_steps])),
    )


def _entries(summary: Mapping[str, Any], key: str, kind: type) -> Any:
    """An entry of a summary file; empty if it is missing or of another type."""
    value = summary.get(key)
    return value if isinstance(value, kind) else kind()


def _problem(known: RunFindings) -> str:
    if not known.has_ended:
        return "The fit has not ended, or was killed: which rules found nothing is not known."
    if known.summary is None:
        return "The summary of the fit is missing: which rules found nothing is not known."
    stopped = known.summary.get("stopped")
    return f"The health rules stopped after {stopped}: nothing is known of the steps after that." if stopped else ""
