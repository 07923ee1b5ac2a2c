"""The table of a report: one line for each check, and below it what to try about the ones that warn or fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from lightning_hooks.explained import command_for
from lightning_hooks.health.text import WIDTH, wrapped

if TYPE_CHECKING:
    from lightning_hooks.checks.result import CheckResult

_WORDS: Final = {"pass": "PASS", "warn": "WARN", "fail": "FAIL", "skip": "SKIP"}


def as_table(results: Sequence[CheckResult], notes: Iterable[str], width: int = WIDTH) -> str:
    """A report as plain text.

    Args:
        results: the rows.
        notes: about the whole check.
        width: of the table in characters.
    """
    return "\n".join(_lines(results, notes, width))


def _lines(results: Sequence[CheckResult], notes: Iterable[str], width: int) -> Iterator[str]:
    widest = max((len(each.check) for each in results), default=0)
    indent = " " * (widest + 8)
    for result in results:
        yield from wrapped(result.message or "-", f"{_WORDS[result.status]}  {result.check:<{widest}}  ", indent, width)
        if result.status in ("warn", "fail"):
            more = command_for(result.check)
            for step in (*result.next_steps, *([f"More: {more}"] if more else [])):
                yield from wrapped(step, f"{indent}-> ", f"{indent}   ", width)
    for note in notes:
        yield from wrapped(note, "Note: ", "      ", width)
