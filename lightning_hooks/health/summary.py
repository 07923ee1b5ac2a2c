"""The summary of a run: which rules looked, which could not and why, and what they found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from lightning_hooks.errors import counted, listed, printable
from lightning_hooks.health.finding import Cause, Finding, problems_of, stands
from lightning_hooks.health.learning import UNKNOWN, LossCourse
from lightning_hooks.health.rule import Severity

HEALTHY: Final = "Healthy"
"""The verdict on a run in which nothing was found and whose loss shows that it has learned."""
NOTHING_FOUND: Final = "No problem found"
"""The verdict on another run in which nothing was found."""
NOTHING_LEFT: Final = "No problem lasts"
"""What the sentence on a run says in place of `NOTHING_FOUND` if all that was found is over."""
NOT_HEALTHY: Final = "Not healthy"
FURTHER: Final = "`check` looks further"


def summary_of(
    step: int,
    steps: int,
    *,
    ran: Sequence[str],
    could_not: Mapping[str, str],
    failed: Mapping[str, str],
    accepted: Sequence[str],
    findings: Sequence[Finding],
    causes: Sequence[Cause],
    course: LossCourse = UNKNOWN,
) -> dict[str, Any]:
    """The summary as plain values.

    Args:
        step: the last step.
        steps: the number of steps of the run.
        ran: the names of the rules that looked.
        could_not: why other rules could not.
        failed: the error of each rule that was switched off.
        accepted: the rule and row of symptoms that the user accepts.
        findings: all findings.
        causes: what explains them.
        course: of the loss.

    Example:
        >>> summary_of(99, 100, ran=["LossSpike"], could_not={"DeadUnits": "no row has `output`"}, failed={}, accepted=[],
        ...            findings=[], causes=[], course=LossCourse(2.3, 0.7, True))["line"]
        'Healthy in 100 steps.'
    """
    verdict = _verdict_on(findings, course)
    return {
        "step": step,
        "steps": steps,
        "verdict": verdict,
        "has_learned": course.has_learned,
        "course": course.text,
        "line": line_of(verdict, steps, failed, accepted, findings, causes, course),
        "ran": list(ran),
        "could_not_run": dict(could_not),
        "failed": dict(failed),
        "accepted": list(accepted),
        "findings": [finding.to_dict() for finding in findings],
        "causes": [cause.to_dict() for cause in causes],
    }


def _verdict_on(findings: Sequence[Finding], course: LossCourse) -> str:
    """A finding that is only information, or over, does not make a run unhealthy."""
    if any(map(stands, findings)):
        return NOT_HEALTHY
    return HEALTHY if course.has_learned else NOTHING_FOUND


def line_of(
    verdict: str,
    steps: int,
    failed: Collection[str],
    accepted: Collection[str],
    findings: Sequence[Finding],
    causes: Sequence[Cause],
    course: LossCourse,
) -> str:
    """One sentence on a run, of at most 100 characters unless names are long."""
    notes = sum(finding.severity is Severity.INFO for finding in findings)
    standing = problems_of([finding for finding in findings if stands(finding)], causes)
    over = [name for name in problems_of(findings, causes) if name not in standing]
    is_open = verdict == NOTHING_FOUND
    what = f"{NOTHING_LEFT if is_open and over else verdict} in {counted(steps, 'step')}"
    if standing:
        what += f": {listed(standing, 2)}"
    beside = [
        counted(notes, "note") if notes else "",
        f"{len(accepted)} accepted" if accepted else "",
        f"{listed(failed, 2)} failed" if failed else "",
    ]
    if any(beside):
        what += f" ({', '.join(filter(None, beside))})"
    clauses = [course.text if is_open else "", f"over: {listed(over, 2)}" if over else "", FURTHER if is_open else ""]
    return printable("; ".join([what, *filter(None, clauses)]) + ".")
