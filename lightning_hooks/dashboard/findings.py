"""Turns the lines of a `findings.jsonl` into what the page lists: the events of a journal, or objects of somebody else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from lightning_hooks.dashboard.facts import json_object
from lightning_hooks.errors import RuleError
from lightning_hooks.explained import command_for
from lightning_hooks.health.accepting import patterns_of
from lightning_hooks.health.finding import Cause, Event, Finding
from lightning_hooks.health.journal import standing

_MOST: Final = 100
"""The most symptoms that are listed of a finding."""


def shown_findings(text: str, tensors: Collection[str] = ()) -> list[Mapping[str, Any]]:
    """The causes, then the findings of a file, each as it stands after the last line and the worst first.

    `rows` of a finding are the names of its modules or parameters, an empty name for the whole run; `name` is the first one.

    Args:
        text: the file. Damaged lines are ignored: the file may be written at the moment.
        tensors: the tensors of the tables of the run, with the prefixes of monitors.
    """
    events: list[Event] = []
    others: list[Mapping[str, Any]] = []
    for line in text.splitlines():
        known = json_object([line])
        if "event" not in known:
            # Drop null fields, which mean the same as missing fields, and nested fields, which the page does not show.
            others.append({key: value for key, value in known.items() if isinstance(value, str | int | float)})
            continue
        try:
            events.append(Event.from_dict(known))
        except RuleError:
            continue
    return [*filter(None, others), *listed(*standing(events), tensors)]


def shown_summary(summary: Mapping[str, Any], tensors: Collection[str] = ()) -> list[Mapping[str, Any]] | None:
    """The causes and findings of a `summary.json`, as `shown_findings` lists them; None if it is none, empty if damaged."""
    if not isinstance(summary.get("ran"), list):
        return None
    try:
        findings = [Finding.from_dict(each) for each in _as(list, summary.get("findings"))]
        causes = [Cause.from_dict(each) for each in _as(list, summary.get("causes"))]
    except RuleError:
        return []
    return listed(findings, causes, tensors)


def listed(findings: list[Finding], causes: list[Cause], tensors: Collection[str] = ()) -> list[Mapping[str, Any]]:
    """The causes, then the findings, each with the worst first; among equals those that still hold come first."""
    over = {finding.number for finding in findings if finding.is_over is not None}
    causes = sorted(causes, key=lambda cause: (-cause.severity.rank, over.issuperset(cause.numbers)))
    findings = sorted(findings, key=lambda finding: (-finding.severity.rank, finding.is_over is not None))
    return [*map(_of_cause, causes), *(_of_finding(finding, tensors) for finding in findings)]


def checks_of(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Which rules looked at a run, from its `summary.json`, without what has another type; None while rules still look.

    Returns:
        `ran` (names of rules), `could_not_run` and `failed` (the reason of each), `accepted`, the number of `steps`, whether
        the training `has_learned`, the `course` of its loss in words, and the `error` of the training if there was one.
    """
    if not isinstance(summary.get("ran"), list) or summary.get("has_ended") is False:
        return None
    texts = {key: [*filter(_is_text, _as(list, summary.get(key)))] for key in ("ran", "accepted")}
    reasons = {
        key: {name: str(why) for name, why in _as(dict, summary.get(key)).items()} for key in ("could_not_run", "failed")
    }
    steps = summary.get("steps")
    ends = {key: summary[key] for key in ("error", "stopped") if _is_text(summary.get(key))}
    learning = {"has_learned": summary.get("has_learned") is True, "course": str(summary.get("course") or "")}
    return {**texts, **reasons, "steps": steps if isinstance(steps, int) else 0, **learning, **ends}


def has_ended(text: str) -> bool:
    """Whether the last fit of a `findings.jsonl` has ended; a file without marks counts as ended."""
    kinds = [json_object([line]).get("event") for line in text.splitlines() if '"begin"' in line or '"end"' in line]
    marks = [kind for kind in kinds if kind in ("begin", "end")]
    return not marks or marks[-1] == "end"


def _of_cause(cause: Cause) -> dict[str, Any]:
    message = f"{cause.message} This takes the place of {', '.join(cause.replaces)}." if cause.replaces else cause.message
    return {
        "kind": "cause",
        "rule": cause.name,
        "severity": str(cause.severity),
        "confidence": cause.confidence,
        "message": message,
        "verdict": f"{cause.name} ({cause.confidence}). {message}",
        "why": ", ".join(dict.fromkeys(fingerprint.partition("/")[0] for fingerprint in cause.findings)),
        "next": " ".join(cause.next_steps),
        "next_steps": list(cause.next_steps),
        "alternatives": list(cause.alternatives) if cause.confidence != "certain" else [],
        "more": command_for(cause.name),
        "numbers": list(cause.numbers),
        "step": cause.first_step,
    }


def _of_finding(finding: Finding, tensors: Collection[str]) -> dict[str, Any]:
    end = "" if finding.is_over is None else f" Over since step {finding.is_over}."
    row, tensor = finding.rows[0] if finding.rows else "", _with_prefix(finding.tensor, tensors)
    # The first row of a finding on the loss has no name. What it did to a layer or a parameter is seen at another row.
    seen = next((each for each in finding.evidence if each.row and each.tensor), None) if not row else None
    quoted = [{"row": symptom.row, "step": symptom.step, "text": symptom.text} for symptom in finding.evidence[:_MOST]]
    more = finding.line, finding.learning
    return {
        "kind": "finding",
        "rule": finding.rule,
        "number": finding.number,
        "severity": str(finding.severity),
        "message": finding.message,
        "verdict": f"{finding.rule}. {finding.message}{end}",
        "why": "; ".join(dict.fromkeys(symptom.text for symptom in finding.evidence[:3])),
        "next": " ".join(finding.next_steps),
        "next_steps": list(finding.next_steps),
        "evidence": [*quoted, *({"row": "", "step": finding.last_step, "text": each} for each in more if each)],
        "source": finding.source,
        "accept": patterns_of(finding.rule, finding.rows),
        "more": command_for(finding.rule),
        "step": finding.first_step,
        "over": finding.is_over,
        "rows": [*finding.rows],
        **({"name": row, "tensor": tensor} if row else {}),
        **({"seen": {"name": seen.row, "tensor": _with_prefix(seen.tensor, tensors), "step": seen.step}} if seen else {}),
    }


def _with_prefix(tensor: str, tensors: Collection[str]) -> str:
    """A tensor with the prefix of the monitor whose table the run has."""
    return tensor if tensor in tensors else next((each for each in tensors if each.rpartition("/")[2] == tensor), tensor)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _as(kind: type, value: Any) -> Any:
    return value if isinstance(value, kind) else kind()
