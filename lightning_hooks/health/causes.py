"""Causes: which findings together point to which reason. The table is data; `explain` reads it from the top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning_hooks.health.advice import fitting
from lightning_hooks.health.cause_rule import CauseRule, Entry
from lightning_hooks.health.cause_table import CAUSES
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.finding import Cause, Confidence, Finding
from lightning_hooks.health.past import Past, Shown
from lightning_hooks.health.row_names import shown_rows
from lightning_hooks.health.rule import Severity

__all__ = ["CAUSES", "CauseRule", "explain"]

EARLIER = 40
"""Steps. If a finding began earlier than this before the decisive findings, it does not belong to their cause."""


def explain(
    findings: Sequence[Finding], evidence: Evidence, table: Sequence[CauseRule] = CAUSES, past: Past | None = None
) -> list[Cause]:
    """The causes of findings. A finding belongs to one cause at most; findings without a cause stand alone.

    Notes need no cause: a decisive finding of each cause is above `info`.

    Args:
        findings: the findings to explain. Their order does not matter.
        evidence: facts about the run.
        table: the causes; an earlier one takes its findings first.
        past: what the steps before earlier findings of the run showed; None if nothing was explained before.

    Example:
        >>> from lightning_hooks.health.rule import Symptom
        >>> symptom = Symptom("", tensor="loss", step=70, measured=9.0, threshold=2.0, text="the loss is 9, after 2")
        >>> spike = Finding(
        ...     "LossSpike",
        ...     rows=("",),
        ...     tensor="loss",
        ...     first_step=70,
        ...     last_step=70,
        ...     severity=Severity.WARNING,
        ...     evidence=(symptom,),
        ...     message="The loss jumps.",
        ...     number=1,
        ... )
        >>> [(cause.name, cause.findings, cause.confidence) for cause in explain([spike], Evidence())]
        [('BadBatch', ('LossSpike',), 'possible')]
    """
    left: dict[str, list[Finding]] = {}  # by rule
    for finding in sorted(findings, key=lambda finding: (finding.first_step, finding.number)):
        left.setdefault(finding.rule, []).append(finding)
    causes = []
    for rule in table:
        cause, taken = _explain_with(rule, left, evidence, past or Past())
        if cause is not None:
            causes.append(cause)
            keys = set(map(_key, taken))
            for name in {finding.rule for finding in taken}:
                left[name] = [finding for finding in left[name] if _key(finding) not in keys]
    return causes


def _explain_with(
    rule: CauseRule, findings: Mapping[str, Sequence[Finding]], evidence: Evidence, past: Past
) -> tuple[Cause | None, list[Finding]]:
    def matching(entry: Entry) -> list[Finding]:
        return [finding for finding in findings.get(entry.rule, ()) if entry.matches(finding)]

    def deciding(entry: Entry) -> list[Finding]:
        return [finding for finding in matching(entry) if finding.is_over is None or not rule.while_standing]

    required = [deciding(entry) for entry in rule.required_entries]
    chosen = [each for entry in rule.any_of_entries for each in deciding(entry)]
    if any(map(matching, rule.excluding_entries)) or not all(required) or (rule.any_of and not chosen):
        return None, []
    decisive = _without_repeats([each for group in required for each in group] + chosen)
    if all(finding.severity is Severity.INFO for finding in decisive):
        return None, []
    begin = min(finding.first_step for finding in decisive)
    if rule.condition is not None and not rule.condition(evidence):
        return None, []
    shown = past.shown(rule, evidence, begin)
    if not shown.holds:
        return None, []
    supporting = [
        each
        for entry in rule.supporting_entries
        for each in matching(entry)
        if each.first_step >= begin - EARLIER and (not rule.same_rows or _share_rows(each, decisive))
    ]
    taken = _without_repeats(decisive + supporting)
    return _cause_of(rule, decisive, taken, evidence, shown), taken


def _cause_of(
    rule: CauseRule, decisive: Sequence[Finding], taken: Sequence[Finding], evidence: Evidence, shown: Shown
) -> Cause:
    confidence: Confidence = rule.confidence
    if confidence == "possible" and len({finding.rule for finding in taken}) > 1:
        confidence = "likely"
    where = shown_rows(decisive[0].rows) or (
        "the loss" if decisive[0].tensor == "loss" or decisive[0].rule.startswith("Loss") else "the run"
    )
    first = min(finding.first_step for finding in decisive)
    return Cause(
        rule.name,
        rule.message.replace("{where}", where).replace("{step}", str(first)) + shown.detail,
        tuple(dict.fromkeys(finding.fingerprint for finding in taken)),
        fitting(rule.next_steps, evidence),
        confidence,
        fitting(rule.alternatives, evidence),
        max((finding.severity for finding in taken), key=lambda severity: Severity(severity).rank),
        first,
        tuple(finding.number for finding in taken),
    )


def _share_rows(finding: Finding, others: Sequence[Finding]) -> bool:
    """Whether a finding is about the whole run, or about a module or parameter of the other findings."""
    rows = [row for other in others for row in other.rows]
    return any(_are_related(row, other) for row in finding.rows for other in rows)


def _are_related(row: str, other: str) -> bool:
    return not row or not other or row == other or row.startswith(f"{other}.") or other.startswith(f"{row}.")


def _key(finding: Finding) -> tuple[int, str]:
    return finding.number, finding.fingerprint


def _without_repeats(findings: Sequence[Finding]) -> list[Finding]:
    return list({_key(finding): finding for finding in findings}.values())
