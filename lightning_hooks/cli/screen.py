"""Shows diagnoses in a terminal: one run on one screen, or one line for each of several runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from lightning_hooks.cli.checkup import Checkup, command_for, has_journal, other_fits
from lightning_hooks.errors import RuleError, counted, listed, printable
from lightning_hooks.health.finding import problems_of
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.terminal import block_for, is_terminal, line_for, width_for
from lightning_hooks.health.text import Block, blocks_of, wrapped

_LINES: Final = 40
"""The height of a screen that is not known."""
_ALL: Final = 1000
"""More rules than there are."""
_MOST_RULES: Final = 3
"""The most rules that a list names where the screen is too small for all; of the silent rules, unless all is asked for."""
_MOST_REASONS: Final = 3
"""The most reasons of the worst finding that are shown where the screen is too small for all."""
_INDENT: Final = " " * 12


def table(runs: Sequence[Path], checkups: Sequence[Checkup | RuleError]) -> Iterator[str]:
    """One line for each run: whether it is healthy, and its worst problem."""
    names = [printable(str(run)) for run in runs]
    width = max(map(len, names))
    for name, checkup in zip(names, checkups, strict=True):
        if isinstance(checkup, RuleError):
            verdict, problem = "not diagnosed", str(checkup)
        elif checkup.unjudged:
            verdict, problem = "not judged", checkup.unjudged
        elif not checkup.standing:
            verdict = "healthy" if checkup.is_healthy else "no problem"
            problem = checkup.course if checkup.known.has_ended else "it has not ended, or was killed"
            if checkup.earlier:
                verdict, problem = "nothing new", _from_before(checkup)
        else:
            worst = blocks_of(checkup.causes, checkup.standing)[0]
            verdict, problem = "not healthy", f"{worst.severity.upper()}: {worst.verdict}"
        line = f"{name.ljust(width)}  {verdict:<13}  {printable(problem)}".rstrip()
        yield _cut(line, width_for(sys.stdout)) if is_terminal(sys.stdout) else line


def screen(checkup: Checkup, *, is_whole: bool = False) -> list[str]:
    """The diagnosis of one run in lines.

    Args:
        checkup: the diagnosis.
        is_whole: whether all findings and reasons are shown; otherwise as many as the screen has room for.
    """
    width = width_for(sys.stdout)
    head = line_for(verdict_of(checkup), sys.stdout).splitlines()
    blocks = blocks_of(checkup.causes, checkup.findings, least=Severity.INFO)
    tail = list(_what_ran(checkup, width, silent=_ALL if is_whole else _MOST_RULES))
    if is_whole:
        return [*head, *_shown(blocks), *tail]
    height = shutil.get_terminal_size((width, _LINES)).lines - 1 if is_terminal(sys.stdout) else _LINES
    if len(head) + _height(blocks, width) + len(tail) > height:
        tail = list(_what_ran(checkup, width, most=_MOST_RULES, silent=_MOST_RULES))
    room = height - len(head) - len(tail)
    if _height(blocks, width) <= room:
        return [*head, *_shown(blocks), *tail]
    shown = _fitting(blocks, room - len(_more(checkup, len(blocks))), width)
    return [*head, *_shown(shown), *_more(checkup, len(blocks) - len(shown)), *tail]


def _shown(blocks: Iterable[Block]) -> list[str]:
    return [line for block in blocks for line in block_for(block, sys.stdout).splitlines()]


def _more(checkup: Checkup, hidden: int) -> list[str]:
    """How to read the rest."""
    rest = f"{counted(hidden, 'more finding')}, and all reasons" if hidden else "All reasons"
    options = [
        " --recompute" if checkup.is_recomputed and has_journal(checkup.run) else "",
        f" --fit {checkup.known.fit}" if checkup.known.fit < checkup.known.fits else "",
        f" --since {checkup.since}" if checkup.since > 0 else "",
    ]
    return line_for(printable(f"{rest}: {command_for(checkup.run)} --all{''.join(options)}"), sys.stdout).splitlines()


def verdict_of(checkup: Checkup) -> str:
    """The sentence on the whole run."""
    run, known, standing = checkup.run, checkup.known, checkup.standing
    steps = f" since step {checkup.since}" if checkup.since > 0 else ""
    steps += "" if checkup.steps is None else f" in {counted(checkup.steps, 'step')}"
    problems = problems_of(standing, checkup.causes)
    past = len(problems_of(checkup.findings, checkup.causes)) - len(problems)
    over = f" {counted(past, 'earlier problem')} {'is' if past == 1 else 'are'} over." if past else ""
    if checkup.unjudged:
        return printable(f"{run}: not judged{steps}: {checkup.unjudged}. {other_fits(run, known)}".rstrip())
    if standing:
        verdict = f"{run}: not healthy, {counted(len(problems), 'problem')}{steps}.{over}"
    else:
        claim = "healthy, no problem" if checkup.is_healthy else "no new problem" if checkup.earlier else "no problem"
        found = " stands" if past else "" if checkup.is_healthy or checkup.earlier else " found"
        rest = [text for text in (_from_before(checkup), checkup.course) if text]
        verdict = f"{run}: {'; '.join([f'{claim}{found}{steps}', *rest])}.{over}"
    source = "The default rules have read its event file" if checkup.is_recomputed else ""
    source += ": no HealthMonitor was active" if source and not has_journal(run) else ""
    ends = {
        "The fit has not ended, or was killed.": not known.has_ended,
        f"The fit ended with {checkup.summary.get('error')}.": "error" in checkup.summary,
        f"The health rules stopped after {checkup.summary.get('stopped')}.": "stopped" in checkup.summary,
        f"{checkup.unread.capitalize()}.": bool(checkup.unread),
        f"{source}.": bool(source),
        f"{_sentence_of(checkup.summary.get('lacks'))}.": "lacks" in checkup.summary,
        other_fits(run, known): known.fits > 1,
    }
    return printable(" ".join([verdict, *(text for text, holds in ends.items() if holds)]))


def _from_before(checkup: Checkup) -> str:
    """What stands and is not told, because it began before the steps that were asked for; empty if there is nothing."""
    names = checkup.earlier
    stand = "stands" if len(names) == 1 else "stand"
    return f"{counted(len(names), 'problem')} from before {stand}: {listed(names, _MOST_RULES)}" if names else ""


def _sentence_of(clause: object) -> str:
    """A clause as the beginning of a sentence."""
    text = str(clause or "")
    return f"{text[:1].upper()}{text[1:]}"


def _what_ran(checkup: Checkup, width: int, *, silent: int, most: int = _ALL) -> Iterator[str]:
    """Which rules looked, and which could not and why.

    Args:
        checkup: of the run.
        width: of a line.
        silent: the most rules that are named of those that found nothing.
        most: the most rules that are named in each other list.
    """
    ran = checkup.names("ran")
    if not ran and not checkup.is_recomputed and (checkup.unjudged or not checkup.known.has_ended):
        yield from wrapped(
            "A fit notes which rules ran when it ends; --recompute lets the default rules read its event file.",
            "Ran         ",
            _INDENT,
            width,
        )
        return
    found = {finding.rule for finding in checkup.findings}
    quiet = [name for name in ran if name not in found]
    entries = {
        f"{len(found)} found": [*dict.fromkeys(finding.rule for finding in checkup.findings)],
        f"{len(quiet)} silent": quiet,
        "Could not": _by_reason(checkup.reasons("could_not_run"), silent),
        "Failed": _by_reason(checkup.reasons("failed")),
        "Accepted": checkup.names("accepted"),
    }
    for title, names in entries.items():
        if names:
            yield from wrapped(listed(names, silent if names is quiet else most), f"{title:<12}", _INDENT, width)


def _by_reason(reasons: Mapping[str, str], most: int = _ALL) -> list[str]:
    """Names with their reason, names with one reason together; their number alone if there are more than `most`."""
    if len(reasons) > most:
        return [f"{len(reasons)} rules (--all says why)"]
    names: dict[str, list[str]] = {}
    for name, why in reasons.items():
        names.setdefault(why, []).append(name)
    return [f"{' and '.join(each)} ({why})" for why, each in names.items()]


def _fitting(blocks: Sequence[Block], lines: int, width: int) -> list[Block]:
    """The blocks that fit into some lines.

    The worst block is shown with its first reasons. Of the others the first line is shown, and in full what still fits.
    """
    worst = blocks[0]._replace(why=blocks[0].why[:_MOST_REASONS])
    room = lines - _height([worst], width)
    others = blocks[1 : 1 + max(room, 0)]
    room -= len(others)
    shown = [worst]
    for block in others:
        more = _height([block], width) - 1
        shown.append(block if more <= room else _first_line(block, width))
        room -= more if more <= room else 0
    return shown


def _first_line(block: Block, width: int) -> Block:
    """A block of one line."""
    room = width - len(f"{block.severity.upper()}: ")
    return Block(block.severity, _cut(printable(block.verdict), room), (), ())


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _height(blocks: Iterable[Block], width: int) -> int:
    return sum(len(list(block.lines(width))) for block in blocks)
