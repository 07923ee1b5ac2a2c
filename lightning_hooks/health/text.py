"""Findings and causes in words: verdict, why and what next, one block for each cause and for each finding without one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from lightning_hooks.errors import printable
from lightning_hooks.explained import command_for
from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.row_names import shown_rows, user_name
from lightning_hooks.health.rule import Severity

WIDTH: Final = 110  # characters
_MOST_REASONS: Final = 8  # lines
_COLORS: Final = {Severity.INFO: "cyan", Severity.WARNING: "yellow", Severity.CRITICAL: "red"}


class Block(NamedTuple):
    """One block.

    Args:
        severity: of the cause or finding.
        verdict: what is wrong, since when.
        why: the numbers, one line for each finding.
        next_steps: what to try.
        alternatives: what else could explain it, and how to tell it apart.
        cause: the name of the cause; empty for a finding that stands alone.
        numbers: of the findings.
        more: the command that prints what the rule or the cause means; empty for a rule of the user's.
    """

    severity: Severity
    verdict: str
    why: tuple[str, ...]
    next_steps: tuple[str, ...]
    alternatives: tuple[str, ...] = ()
    cause: str = ""
    numbers: tuple[int, ...] = ()
    more: str = ""

    def lines(self, width: int = WIDTH) -> Iterator[str]:
        """The lines of plain text."""
        yield from wrapped(f"{self.severity.upper()}: {self.verdict}", later="  ", width=width)
        more = (self.more,) if self.more else ()
        for title, entries in (("Why", self.why), ("Next", self.next_steps), ("Or", self.alternatives), ("More", more)):
            for i, entry in enumerate(entries):
                yield from wrapped(entry, f"  {title if i == 0 else '':<6}", " " * 8, width)


def wrapped(text: str, first: str = "", later: str = "", width: int = WIDTH) -> list[str]:
    """Text in lines of a width, of which the first and the later ones begin with these indents."""
    return textwrap.wrap(printable(text), width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)


def block_of_cause(cause: Cause, findings: Iterable[Finding], before: Sequence[str] | None = None) -> Block:
    """The block of a cause.

    Args:
        cause: the cause.
        findings: all findings of the run; those of the cause become its reasons.
        before: the names of the causes and findings whose messages it takes the place of; those that the cause names if None.
    """
    by_number = {finding.number: finding for finding in findings}
    explained = [by_number[number] for number in cause.numbers if number in by_number]
    reasons = [_reason(finding, cause.message) for finding in explained]
    # A finding on the loss may quote as its harm what it says itself.
    told = {each.text for finding in explained for each in finding.evidence[:1]}
    harms = tuple(dict.fromkeys(each.harm for each in explained if each.harm and each.harm not in told))[:1]
    if len(reasons) > _MOST_REASONS:
        reasons = [*reasons[: _MOST_REASONS - 1], f"and {len(reasons) - _MOST_REASONS + 1} more findings"]
    names = cause.replaces if before is None else before
    learning = tuple(each.learning for each in explained if each.learning)[:1]
    line = tuple(each.line for each in explained if each.line)[:1]
    replaces = f" This takes the place of {', '.join(names)}." if names else ""
    return Block(
        cause.severity,
        f"{cause.name} ({cause.confidence}). {cause.message}{replaces}",
        (*reasons, *harms, *line, *learning),
        cause.next_steps,
        cause.alternatives if cause.confidence != "certain" else (),
        cause.name,
        cause.numbers,
        command_for(cause.name),
    )


def block_of_rise(cause: Cause, before: str, findings: Iterable[Finding]) -> Block:
    """The block that says that a cause which has been shown is graver by now.

    Args:
        cause: the cause.
        before: the severity with which it was shown.
        findings: those of the cause.
    """
    worst = [finding for finding in findings if finding.severity == cause.severity]
    verdict = f"{cause.name}, told before as {before}, is {cause.severity} by now."
    return Block(
        cause.severity,
        verdict,
        tuple(_reason(finding, verdict) for finding in worst[:1]),
        (),
        cause=cause.name,
        numbers=cause.numbers,
    )


def block_of_withdrawal(name: str) -> Block:
    """The block that takes back a cause which has been shown."""
    return Block(Severity.INFO, f"{name}, told before, holds no longer.", (), (), cause=name)


def block_of_return(name: str) -> Block:
    """The block that says that a cause holds again after it has been taken back."""
    return Block(Severity.INFO, f"{name}, told before, holds again.", (), (), cause=name)


def block_of_finding(finding: Finding) -> Block:
    """The block of a finding that stands alone."""
    verdict = f"{finding.rule}, since step {finding.first_step}. {finding.message}"
    said = [each for each in finding.evidence if not (len(finding.rows) < 2 and _is_said(each.text, finding.message))]
    quoted = [f"{user_name(each.row)}, " * bool(each.row) + f"step {each.step}: {each.text}" for each in said]
    # The two parts of a weight behind a weight norm say the same.
    why = tuple(dict.fromkeys(quoted))[:3]
    source = (f"threshold: {finding.source}",) if finding.source else ()
    harm = (finding.harm,) if finding.harm and finding.harm not in {each.text for each in finding.evidence} else ()
    learning = (finding.learning,) if finding.learning else ()
    line = (finding.line,) if finding.line else ()
    reasons = why + harm + line + learning + source
    return Block(
        finding.severity,
        f"{verdict}{_end(finding)}",
        reasons,
        finding.next_steps,
        numbers=(finding.number,),
        more=command_for(finding.rule),
    )


def _end(finding: Finding) -> str:
    return "" if finding.is_over is None else f" Over since step {finding.is_over}."


def _is_said(text: str, message: str) -> bool:
    """Whether a message has said what a measurement says."""
    return text.casefold() in message.casefold()


def _reason(finding: Finding, message: str) -> str:
    """A finding under a cause, without what the `message` of the cause has said."""
    where = shown_rows(finding.rows)
    place = f" in {where}" if where else ""
    text = f": {finding.evidence[0].text}" if finding.evidence and not _is_said(finding.evidence[0].text, message) else ""
    return f"{finding.rule}{place}, since step {finding.first_step}{text}{'' if finding.is_over is None else ' (over)'}"


def blocks_of(causes: Iterable[Cause], findings: Sequence[Finding], least: Severity = Severity.WARNING) -> list[Block]:
    """The blocks of a run, the worst first: one for each cause, and one for each finding that stands alone.

    Args:
        causes: the causes.
        findings: the findings.
        least: leave out what is less severe.
    """
    causes = list(causes)
    explained = {number for cause in causes for number in cause.numbers}
    alone = [finding for finding in findings if finding.number not in explained]
    blocks = [block_of_cause(cause, findings) for cause in causes] + [block_of_finding(finding) for finding in alone]
    kept = [block for block in blocks if block.severity.rank >= least.rank]
    return sorted(kept, key=lambda block: -block.severity.rank)


def as_text(blocks: Iterable[Block], width: int = WIDTH) -> str:
    r"""Blocks as plain text.

    Example:
        >>> print(as_text([Block(Severity.WARNING, "DeadUnits, since step 20.", ("fc: 9 of 10 units",), ("Lower the rate.",))]))
        WARNING: DeadUnits, since step 20.
          Why   fc: 9 of 10 units
          Next  Lower the rate.
    """
    return "\n".join("\n".join(block.lines(width)) for block in blocks)


def as_rich(block: Block, width: int = WIDTH) -> Any:
    """A block as a `rich` text with colours; None if rich is not installed."""
    try:
        from rich.text import Text
    except ImportError:
        return None
    text = Text()
    for i, line in enumerate(block.lines(width)):
        color = _COLORS[block.severity]
        text.append(f"{line}\n", style=f"bold {color}" if i == 0 else "")
    text.rstrip()
    return text
