"""The summary of a run: which rules looked, which could not and why, and what they found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_hooks.errors import counted, listed, printable
from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.rule import Severity


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
) -> dict[str, Any]:
    """The summary as plain values.

    Args:
        step: the last step.
        steps: the number of steps that were published.
        ran: the names of the rules that looked.
        could_not: why other rules could not.
        failed: the error of each rule that was switched off.
        accepted: the rule and row of symptoms that the user accepts.
        findings: all findings.
        causes: what explains them.

    Example:
        >>> summary_of(9, 10, ran=["LossSpike"], could_not={"DeadUnits": "no row has `output`"}, failed={}, accepted=[],
        ...            findings=[], causes=[])["line"]
        'Healthy: 1 rule found nothing in 10 steps; 1 could not run: DeadUnits (no row has `output`).'
    """
    return {
        "step": step,
        "steps": steps,
        "line": line_of(steps, ran, {**could_not, **failed}, accepted, findings, causes),
        "ran": list(ran),
        "could_not_run": dict(could_not),
        "failed": dict(failed),
        "accepted": list(accepted),
        "findings": [finding.to_dict() for finding in findings],
        "causes": [cause.to_dict() for cause in causes],
    }


def line_of(
    steps: int,
    ran: Sequence[str],
    could_not: Mapping[str, str],
    accepted: Sequence[str],
    findings: Sequence[Finding],
    causes: Sequence[Cause],
) -> str:
    """One sentence on a run. A finding that is only information does not make a run unhealthy."""
    worse = [finding for finding in findings if finding.severity is not Severity.INFO]
    notes = len(findings) - len(worse)
    looked = f"{counted(len(ran), 'rule')} found"
    if worse:
        told = [cause.name for cause in causes if cause.severity is not Severity.INFO]
        alone = [finding.fingerprint for finding in worse if finding.cause is None]
        problems = f"{counted(len(worse), 'problem')} in {counted(steps, 'step')}: {listed([*told, *alone], 4)}"
        what = f"Not healthy: {looked} {problems}"
    else:
        what = f"Healthy: {looked} nothing in {counted(steps, 'step')}"
    reasons = [f"{name} ({why})" for name, why in could_not.items()]
    clauses = [
        f"{counted(notes, 'note')} in the file" if notes else "",
        f"{len(accepted)} accepted" if accepted else "",
        f"{len(could_not)} could not run: {listed(reasons, 4)}" if could_not else "",
    ]
    return printable("; ".join([what, *filter(None, clauses)]) + ".")
