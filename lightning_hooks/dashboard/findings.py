"""Turns the lines of a `findings.jsonl` into what the page lists: the events of a journal, or objects of somebody else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lightning_hooks.dashboard.facts import json_object
from lightning_hooks.errors import RuleError
from lightning_hooks.health.finding import Cause, Event, Finding
from lightning_hooks.health.journal import standing


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
    findings, causes = standing(events)
    causes.sort(key=lambda cause: -cause.severity.rank)
    findings.sort(key=lambda finding: -finding.severity.rank)
    shown = [*map(_of_cause, causes), *(_of_finding(finding, tensors) for finding in findings)]
    return [*filter(None, others), *shown]


def _of_cause(cause: Cause) -> dict[str, Any]:
    return {
        "rule": cause.name,
        "severity": str(cause.severity),
        "verdict": f"{cause.name} ({cause.confidence}). {cause.message}",
        "why": ", ".join(dict.fromkeys(fingerprint.partition("/")[0] for fingerprint in cause.findings)),
        "next": " ".join(cause.next_steps),
        "step": cause.first_step,
    }


def _of_finding(finding: Finding, tensors: Collection[str]) -> dict[str, Any]:
    end = "" if finding.is_over is None else f" Over since step {finding.is_over}."
    row, tensor = finding.rows[0] if finding.rows else "", finding.tensor
    if tensor not in tensors:
        tensor = next((each for each in tensors if each.rpartition("/")[2] == finding.tensor), tensor)
    return {
        "rule": finding.rule,
        "severity": str(finding.severity),
        "verdict": f"{finding.rule}. {finding.message}{end}",
        "why": "; ".join(dict.fromkeys(sign.text for sign in finding.evidence[:3])),
        "next": " ".join(finding.next_steps),
        "step": finding.first_step,
        "rows": [*finding.rows],
        **({"name": row, "tensor": tensor} if row else {}),
    }
