"""Writes docs/faults.md, a section for each fault: `python -m galleries.faults_page`.

Its texts are those of `lightning-hooks explain`. `python -m website.pages` writes them from the rules, checks and causes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lightning_hooks.checks.catalogue import checks_by_name
from lightning_hooks.explained import Page, pages
from lightning_hooks.explained.pages import TITLES
from lightning_hooks.health.cause_rule import entry_of
from lightning_hooks.health.causes import CAUSES
from lightning_hooks.health.rules import rules_by_name
from website.assemble import escaped

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"
INTRODUCTION: Final = """# Faults

You can look up what a fault is, from which number on it is told, and what to try, as `lightning-hooks explain NAME`
prints it. A fault has the same name before and during a run: `check` looks for it [on one batch](check.md), `HealthMonitor`
[in a run](health.md). `rules`, `checks`, `accept` and `actions` take this name.

You can change each threshold: `HealthMonitor(rules={"LossSpike": {"sigmas": 8}})`,
`check(…, checks={"InitialLoss": {"factor": 3}})`. *Patience* is the number of measured steps in a row at which the condition of
a rule holds. A rule whose severity is `info` is never printed. Differences from good runs are told [by other
rules](baselines.md).
"""
_LAST: Final = TITLES[-1]
"""How a finding is accepted, which the introduction says for all of them."""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page."""
    names = sorted({*rules_by_name(), *checks_by_name()})
    return "\n".join([INTRODUCTION, *(line for name in names for line in _section(pages()[name]))])


def linked(name: str) -> str:
    """The name of a fault as a link to its section."""
    return f"[`{name}`](faults.md#{name.lower()})"


def _section(fault: Page) -> Iterator[str]:
    kinds = " and ".join(kind for kind in fault.kinds if kind in ("rule", "check"))
    yield from (f"## {fault.name}", "", f"*{kinds.capitalize()}.*", "")
    for part in fault.sections:
        if part.title == _LAST:
            continue
        yield from (" ".join([f"**{part.title}.**", *map(escaped, part.paragraphs)]), "")
        if part.points:
            yield from (*(f"- {escaped(point)}" for point in part.points), "")
    causes = [each.name for each in CAUSES if fault.name in {entry_of(text).rule for text in (*each.required, *each.any_of)}]
    if causes:
        names = ", ".join(f"`{cause}`" for cause in dict.fromkeys(causes))
        yield from (f"A finding of it may belong to the [cause](health.md#causes) {names}.", "")


if __name__ == "__main__":
    main()
