"""Writes docs/faults.md, a section for each fault, from the rules, checks and causes: `python -m galleries.faults_page`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from lightning_hooks.checks import Check
from lightning_hooks.checks.catalogue import checks_by_name
from lightning_hooks.health import HealthRule
from lightning_hooks.health.cause_rule import entry_of
from lightning_hooks.health.causes import CAUSES
from lightning_hooks.health.criterion import Criterion
from lightning_hooks.health.rules import rules_by_name

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"
INTRODUCTION = """# Faults

You can look up what a fault is, from which number on it is told, and what to try. A fault has the same name before and during
a run: `check` looks for it [on one batch](check.md), `HealthMonitor` [in a run](health.md). `rules`, `checks`, `accept` and
`actions` take this name.

You can change each threshold: `HealthMonitor(rules={"LossSpike": {"sigmas": 8}})`,
`check(…, checks={"InitialLoss": {"factor": 3}})`. *Patience* is the number of measured steps in a row at which the condition of
a rule holds. A rule whose severity is `info` is never printed. Differences from good runs are told [by other
rules](baselines.md).
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page."""
    rules, checks = rules_by_name(), checks_by_name()
    names = sorted({*rules, *checks})
    return "\n".join([INTRODUCTION, *("\n".join(_section(name, rules.get(name), checks.get(name))) for name in names)])


def linked(name: str) -> str:
    """The name of a fault as a link to its section."""
    return f"[`{name}`](faults.md#{name.lower()})"


def _section(name: str, rule: HealthRule | None, check: Check | None) -> Iterator[str]:
    yield f"## {name}\n"
    if rule is not None:
        yield f"**In a run**, the fault is: {_text(rule)}\n"
        yield (
            f"Severity `{rule.severity}`, patience {rule.patience}, looks every {rule.every_n_steps} steps"
            f"{f' from step {rule.warmup} on' if rule.warmup else ''}.\n"
        )
    if check is not None:
        off = "" if check.enabled else " Off unless asked for."
        yield f"**On one batch**, a healthy training has this: {_text(check)}{off}\n"
        if check.not_shown:
            yield f"One batch does not show {check.not_shown}.\n"
    yield from _thresholds(rule, check)
    known = [each for each in (rule, check) if each is not None]
    yield "\n".join(f"- {step}" for step in dict.fromkeys(step for each in known for step in each.next_steps)) + "\n"
    yield f"Source: {'; '.join(dict.fromkeys(each.source for each in known))}.\n"
    causes = [each.name for each in CAUSES if name in {entry_of(text).rule for text in (*each.required, *each.any_of)}]
    if causes:
        names = ", ".join(f"`{cause}`" for cause in dict.fromkeys(causes))
        yield f"A finding of it may belong to the [cause](health.md#causes) {names}.\n"


def _thresholds(rule: HealthRule | None, check: Check | None) -> Iterator[str]:
    """A table of the thresholds; those of both the rule and the check are told once."""
    own = {"in a run": _own_fields(rule, HealthRule), "on one batch": _own_fields(check, Check)}
    names = list(dict.fromkeys(name for each in own.values() for name in each))
    if not names:
        return
    yield "| threshold | default | used | meaning |\n| --- | --- | --- | --- |"
    for name in names:
        used = [where for where, each in own.items() if name in each]
        value, meaning = own[used[0]][name]
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        yield f"| `{name}` | {shown} | {' and '.join(used)} | {meaning} |"
    yield ""


def _own_fields(each: Criterion | None, base: type[Any]) -> dict[str, tuple[Any, str]]:
    """The value and the meaning of each field that the base class does not have."""
    if each is None:
        return {}
    untyped: Any = each
    common = {field.name for field in fields(base)}
    meanings = dict(re.findall(r"^    (\w+): (.*(?:\n        .*)*)", inspect.getdoc(type(each)) or "", re.MULTILINE))
    own = [field.name for field in fields(untyped) if field.name not in common]
    return {name: (getattr(each, name), " ".join(meanings.get(name, "").split())) for name in own}


def _text(each: Criterion) -> str:
    """The docstring of a class, without the description of its fields."""
    return " ".join((inspect.getdoc(type(each)) or "").partition("\nArgs:\n")[0].split())


if __name__ == "__main__":
    main()
