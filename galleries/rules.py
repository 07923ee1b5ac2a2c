"""Which rules an answer was recorded with: each recorded line has the digest of their names and options under `rules`.

A renamed rule or another threshold changes the digest. What a rule computes does not: the trainings in `make test` show that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightning_hooks.checks.catalogue import DEFAULT_CHECKS
from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.causes import CAUSES
from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.health.reference.rules import reference_rules
from lightning_hooks.health.rules import DEFAULT_RULES
from lightning_hooks.recorder.record import Verdict

FOLDER: Final = Path(__file__).parent
_DECIDING: Final = ("required", "any_of", "supporting", "excluding", "same_rows")
"""The fields of a cause that decide whether it is told. The others are words."""


def digest(rules: Iterable[Any]) -> str:
    """Twelve digits for the names and options of rules, whatever their order."""
    return hashlib.sha256("\n".join(sorted(map(_shown, rules))).encode()).hexdigest()[:12]


def _shown(rule: Any) -> str:
    if isinstance(rule, CauseRule):
        return f"{rule.name} {[(each.name, getattr(rule, each.name)) for each in fields(rule) if each.name in _DECIDING]}"
    return f"{getattr(rule, 'name', '')} {rule!r}"


HEALTH: Final = digest([*DEFAULT_RULES, *CAUSES])
CHECKS: Final = digest(DEFAULT_CHECKS)
REFERENCE: Final = digest(reference_rules(Reference()))
RECORDER: Final = digest(map(str, Verdict))


class Record(NamedTuple):
    """A file of recorded answers.

    Args:
        path: below this folder.
        rules: the digest of the rules that answer today.
        command: what records all answers anew.
    """

    path: str
    rules: str
    command: str


RECORDS: Final = (
    Record("health/results.jsonl", HEALTH, "python -m galleries.health.run; python -m galleries.health.table"),
    Record("checks/results.jsonl", CHECKS, "python -m galleries.checks.run"),
    Record("checks/held.jsonl", CHECKS, "python -m galleries.checks.run"),
    Record("reference/results.jsonl", REFERENCE, "python -m galleries.reference.run; python -m galleries.reference.table"),
    Record("recorder/results/answers.jsonl", RECORDER, "python -m galleries.recorder.run; python -m galleries.recorder.table"),
)


def command_of(path: str) -> str:
    """The command that records the answers of a file anew."""
    return next(record.command for record in RECORDS if record.path == path)


def lines_of(record: Record) -> list[dict[str, Any]]:
    """The answers of this package. Other tools, of which a line names the version, have rules of their own."""
    lines = [json.loads(line) for line in (FOLDER / record.path).read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line.get("tool", "FlightRecorder").startswith("FlightRecorder")]


def refuse_outdated(lines: Sequence[Mapping[str, Any]], record: Record) -> None:
    """Raise if an answer was recorded with other rules.

    Raises:
        ValueError: names the file, the trainings and the command that records them anew.
    """
    names = list(dict.fromkeys(line["name"] for line in lines if line.get("rules") != record.rules))
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise ValueError(
            f"galleries/{record.path} has answers of rules that have changed since (of {shown}): "
            f"record them anew with `{record.command}`"
        )
