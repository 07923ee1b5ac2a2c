"""SARIF 2.1.0: outcomes as a file that code hosts show beside the code.

Sources: the standard (docs.oasis-open.org/sarif/sarif/v2.1.0), and what GitHub asks for beyond it: each result has a file, by a
path in the repository, and a fingerprint named `primaryLocationLineHash`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from lightning_hooks.errors import printable
from lightning_hooks.health.outcome import Outcome, Report, RuleText

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif_of(report: Report, file: str, version: str) -> dict[str, Any]:
    """A report as a SARIF log with one run.

    Failures and notes are results. A rule that passed is only in the list of rules; one that could not look is a notification.

    Args:
        report: the outcomes.
        file: the path to which a code host attaches the results, relative to the root of the repository.
        version: of this package.

    Example:
        >>> log = sarif_of(Report("run", (Outcome("LossSpike", "failed", "The loss jumps.", "warning"),)), "train.py", "1.0")
        >>> log["runs"][0]["results"][0]["level"], log["runs"][0]["results"][0]["message"]
        ('warning', {'text': 'The loss jumps.'})
    """
    known = {rule.name: rule for rule in report.rules}
    names = list(dict.fromkeys(outcome.rule for outcome in report.outcomes))
    index = {name: i for i, name in enumerate(names)}
    rules = [_rule(known.get(name, RuleText(name))) for name in names]
    told = [outcome for outcome in report.outcomes if outcome.status in ("failed", "noted")]
    driver = {"name": "lightning-hooks", "version": version, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "invocations": [_invocation(report, index)],
        "results": [_result(outcome, index[outcome.rule], file) for outcome in told],
        "properties": {"run": printable(report.name), "passed": [o.rule for o in report.outcomes if o.status == "passed"]},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: RuleText) -> dict[str, Any]:
    """A `reportingDescriptor`."""
    summary = rule.summary or f"The rule {rule.name}."
    lines = [summary, *([f"Threshold: {rule.source}."] if rule.source else []), *_listed("What to try", rule.next_steps)]
    descriptor: dict[str, Any] = {
        "id": rule.name,
        "name": rule.name,
        "shortDescription": {"text": _escaped(summary)},
        "fullDescription": {"text": _escaped(summary)},
        "help": {"text": _escaped("\n".join(lines))},
        "defaultConfiguration": {"level": rule.level},
    }
    if rule.family:
        descriptor["properties"] = {"tags": [rule.family]}
    return descriptor


def _listed(title: str, entries: Iterable[str]) -> list[str]:
    lines = [f"- {entry}" for entry in entries]
    return [f"{title}:", *lines] if lines else []


def _result(outcome: Outcome, index: int, file: str) -> dict[str, Any]:
    # A module or parameter has no file. GitHub refuses a log in which a result has none, so `file` is the place of all of them.
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": {"uri": quote(file)}, "region": {"startLine": 1}},
    }
    if outcome.rows:
        location["logicalLocations"] = [{"name": row.rpartition(".")[2], "fullyQualifiedName": row} for row in outcome.rows]
    fingerprint = outcome.fingerprint or outcome.rule
    return {
        "ruleId": outcome.rule,
        "ruleIndex": index,
        "level": outcome.level,
        "message": {"text": _escaped(outcome.text())},
        "locations": [location],
        "partialFingerprints": {
            "lightningHooks/v1": fingerprint,
            "primaryLocationLineHash": f"{hashlib.sha256(fingerprint.encode()).hexdigest()[:16]}:1",
        },
        "properties": dict(outcome.facts),
    }


def _invocation(report: Report, index: dict[str, int]) -> dict[str, Any]:
    skipped = [_notification(each, index, "note") for each in report.outcomes if each.status == "skipped"]
    broken = [_notification(each, index, "error") for each in report.outcomes if each.status == "broken"]
    if report.problem:
        broken.append({"level": "warning", "message": {"text": _escaped(report.problem)}})
    return {
        "executionSuccessful": not report.problem,
        "toolConfigurationNotifications": skipped,
        "toolExecutionNotifications": broken,
    }


def _notification(outcome: Outcome, index: dict[str, int], level: str) -> dict[str, Any]:
    rule = {"id": outcome.rule, "index": index[outcome.rule]}
    text = f"{outcome.rule} could not look: {outcome.message}" if level == "note" else f"{outcome.rule}: {outcome.message}"
    return {"level": level, "message": {"text": _escaped(text)}, "associatedRule": rule}


def _escaped(text: str) -> str:
    r"""Text in which braces stand for themselves: in a message of SARIF a number in braces is a placeholder.

    Example:
        >>> _escaped("a dict {0}\x1b")
        'a dict {{0}}\\x1b'
    """
    return printable(text, keep="\n").replace("{", "{{").replace("}", "}}")
