"""Says in one line how healthy a run is: the sign and the sentence of the worst of what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_RANKS: Final = ("fine", "unknown", "info", "warning", "critical")
_SYNONYMS: Final = {"error": "critical", "fatal": "critical"}
_LONGEST: Final = 400  # characters of a sentence in a list
_WORDS: Final[Mapping[str, str]] = {"info": "Notes", "warning": "Warning", "critical": "Critical"}


def health_of(
    findings: Sequence[Mapping[str, Any]] | None,
    checks: Mapping[str, Any] | None,
    records: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """How healthy a run is.

    Args:
        findings: as `shown_findings` lists them; None if no health rule looked at the run.
        checks: as `checks_of` returns them; None while the fit goes on.
        records: the flight records, as `records.listed` returns them.

    Returns:
        The `severity` of the worst (`fine` if nothing was found, `unknown` if nobody looked), the `word` for it, the worst
        `sentence`, the number of `others`, and whether the run `serves` as a healthy one in a comparison.

    Example:
        >>> dead = {"kind": "finding", "rule": "DeadUnits", "severity": "warning", "message": "fc: dead.", "number": 1}
        >>> health_of([dead], None)
        {'severity': 'warning', 'word': 'Warning', 'sentence': 'DeadUnits: fc: dead.', 'others': 0, 'serves': False}
    """
    blocks = _blocks(findings or ())
    told = [*blocks, *(record for record in records if not any(_quotes(block, record) for block in blocks))]
    worst = max(told, key=lambda each: _RANKS.index(severity_of(each)), default=None)
    severity = severity_of(worst) if worst is not None else "unknown" if findings is None else "fine"
    return {
        "severity": severity,
        "word": _WORDS.get(severity) or ("Not examined" if findings is None else _fine(checks)),
        "sentence": "" if worst is None else _sentence(worst),
        "others": max(len(told) - 1, 0),
        "serves": findings is not None and checks is not None and severity in ("fine", "info"),
    }


def severity_of(finding: Mapping[str, Any]) -> str:
    """The severity of a finding. Other packages may write other words into a file of findings."""
    text = str(finding.get("severity") or "").lower()
    severity = _SYNONYMS.get(text, text)
    return severity if severity in _RANKS else "info"


def _blocks(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The causes, and the findings that no cause explains."""
    explained = {number for each in findings if each.get("kind") == "cause" for number in each["numbers"]}
    return [each for each in findings if each.get("kind") != "finding" or each["number"] not in explained]


def _quotes(block: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Whether a cause says what a flight record says, so that both are one card of the page."""
    said = str(record.get("message") or "")
    return block.get("kind") == "cause" and said != "" and said in str(block.get("message") or "")


def _fine(checks: Mapping[str, Any] | None) -> str:
    if checks is None:
        return "Nothing found so far"
    return "Healthy" if checks["has_learned"] else "No problem found"


def _sentence(finding: Mapping[str, Any]) -> str:
    """The name and the sentence of a finding or of a flight record."""
    name = finding.get("rule") or finding.get("title") or "Finding"
    said = finding.get("message") or finding.get("verdict") or finding.get("why") or ""
    text = f"{name}: {said}" if said else str(name)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
