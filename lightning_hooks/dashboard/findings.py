"""Reads the findings of a run as rows of the page's table. They are plain values, because the page loads no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_RANK: Final = {"critical": 0, "warning": 1, "info": 2}


def rows_of_findings(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The findings of the last fit of a run, the worst first: `severity`, `verdict`, `tensor`, `name`, `step`, `why`, `next`.

    Of several events about a finding the last one counts. An object that is no event is a row itself, without the fields that
    the page does not show.

    Args:
        events: the objects of a `findings.jsonl`.

    Example:
        >>> finding = {"number": 0, "rule": "DeadLayer", "severity": "critical", "message": "fc: all is 0.", "rows": ["fc"],
        ...            "tensor": "output", "first_step": 7, "next_steps": ["Look at the bias."]}
        >>> (row,) = rows_of_findings([{"kind": "begin", "step": 0}, {"kind": "new", "step": 19, "finding": finding}])
        >>> row["verdict"], row["name"], row["step"], row["next"]
        ('DeadLayer: fc: all is 0.', 'fc', 7, 'Look at the bias.')
    """
    plain: list[dict[str, Any]] = []
    found: dict[Any, dict[str, Any]] = {}
    for event in events:
        finding = event.get("finding")
        if isinstance(finding, Mapping):
            found[finding.get("number")] = _row(finding)
        elif event.get("kind") == "begin":
            found.clear()
        elif "kind" not in event:
            plain.append({key: value for key, value in event.items() if isinstance(value, str | int | float)})
    return [*plain, *sorted(found.values(), key=lambda row: _RANK.get(row["severity"], 3))]


def _row(finding: Mapping[str, Any]) -> dict[str, Any]:
    over = finding.get("is_over")
    end = "" if over is None else f" Over since step {over}."
    signs = finding.get("evidence") or ()
    texts = [str(sign["text"]) for sign in signs if isinstance(sign, Mapping) and "text" in sign]
    row = {
        "severity": str(finding.get("severity", "")),
        "rule": finding.get("rule"),
        "verdict": f"{finding.get('rule')}: {finding.get('message', '')}{end}",
        "tensor": finding.get("tensor"),
        "name": next(iter(_texts(finding.get("rows"))), ""),
        "step": finding.get("first_step"),
        "why": texts[0] if texts else "",
        "next": next(iter(_texts(finding.get("next_steps"))), ""),
    }
    return {key: value for key, value in row.items() if isinstance(value, str | int | float)}


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
