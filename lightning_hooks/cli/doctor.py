"""The command `lightning-hooks doctor`: what is wrong with a run, and which rules looked, in one screen."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from lightning_hooks.cli.checkup import Checkup, checkup_of, runs_in
from lightning_hooks.cli.diagnoses import has_journal, other_fits
from lightning_hooks.cli.progress import Progress, progress_bar
from lightning_hooks.errors import RuleError, counted, listed, printable
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.terminal import block_for, is_terminal, line_for, width_for
from lightning_hooks.health.text import Block, blocks_of, wrapped

_DESCRIPTION: Final = """\
Say what is wrong with a training, what most likely causes it, which rules looked and which could not.

A run with a HealthMonitor is read from its journal. Of another run the default rules read the event file.
If a folder has several runs, each gets one line. The exit code is 0 if all are healthy, 1 if a warning or
worse stands in one, else 2 if one cannot be judged, as a fit that was killed before any rule looked. A usage
error is 2, too."""
_LINES: Final = 40
"""The height of a screen that is not known."""
_MOST_RULES: Final = 3
"""The most rules that a list names where the screen is too small for all."""
_MOST_REASONS: Final = 3
"""The most reasons of the worst finding that are shown where the screen is too small for all."""
_INDENT: Final = " " * 12


def doctor(arguments: list[str]) -> int:
    """Print the diagnosis of runs.

    Returns:
        1 if a finding of severity warning or critical stands in one of them, else 2 if one cannot be judged, else 0.
    """
    parser = argparse.ArgumentParser(
        "lightning-hooks doctor", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="the log directory of a run, or a folder above runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--recompute", action="store_true", help="read the event file also if there is a journal")
    args = parser.parse_args(arguments)
    runs = list(dict.fromkeys(run for path in args.runs for run in runs_in(path)))
    if len(runs) == 1:
        with progress_bar("Reading steps") as progress:
            checkups: list[Checkup | RuleError] = [checkup_of(runs[0], recompute=args.recompute, progress=progress)]
    else:
        with progress_bar("Reading runs") as progress:
            checkups = list(_each(runs, args.recompute, progress))
    diagnosed = [checkup for checkup in checkups if isinstance(checkup, Checkup)]
    if not diagnosed:
        raise RuleError("; ".join(map(str, checkups)))
    has_problem = any(checkup.standing for checkup in diagnosed)
    is_judged = len(diagnosed) == len(runs) and not any(checkup.unjudged for checkup in diagnosed)
    if args.json:
        entries = [
            each.to_dict() if isinstance(each, Checkup) else {"run": str(run), "problem": str(each)}
            for run, each in zip(runs, checkups, strict=True)
        ]
        print(json.dumps({"healthy": False if has_problem else True if is_judged else None, "runs": entries}, indent=1))
    elif len(runs) == 1:
        print("\n".join(_screen(diagnosed[0])))
    else:
        print("\n".join(_table(runs, checkups)))
    return 1 if has_problem else 0 if is_judged else 2


def _each(runs: Sequence[Path], recompute: bool, progress: Progress) -> Iterator[Checkup | RuleError]:
    """The diagnosis of each run, or why it has none."""
    for number, run in enumerate(runs):
        progress(number, len(runs))
        try:
            yield checkup_of(run, recompute=recompute)
        except RuleError as error:
            yield error


def _table(runs: Sequence[Path], checkups: Sequence[Checkup | RuleError]) -> Iterator[str]:
    """One line for each run: whether it is healthy, and its worst problem."""
    names = [printable(str(run)) for run in runs]
    width = max(map(len, names))
    for name, checkup in zip(names, checkups, strict=True):
        if isinstance(checkup, RuleError):
            verdict, problem = "not diagnosed", str(checkup)
        elif checkup.unjudged:
            verdict, problem = "not judged", checkup.unjudged
        elif not checkup.standing:
            verdict, problem = "healthy", "" if checkup.known.has_ended else "it has not ended, or was killed"
        else:
            worst = blocks_of(checkup.known.causes, checkup.standing)[0]
            verdict, problem = "not healthy", f"{worst.severity.upper()}: {worst.verdict}"
        line = f"{name.ljust(width)}  {verdict:<13}  {printable(problem)}".rstrip()
        yield _cut(line, width_for(sys.stdout)) if is_terminal(sys.stdout) else line


def _screen(checkup: Checkup) -> list[str]:
    """The diagnosis of one run, shortened where it is longer than the screen."""
    width = width_for(sys.stdout)
    height = shutil.get_terminal_size((width, _LINES)).lines - 1 if is_terminal(sys.stdout) else _LINES
    head = line_for(_verdict(checkup), sys.stdout).splitlines()
    blocks = blocks_of(checkup.known.causes, checkup.known.findings, least=Severity.INFO)
    tail = list(_what_ran(checkup, width))
    if len(head) + _height(blocks, width) + len(tail) > height:
        tail = list(_what_ran(checkup, width, most=_MOST_RULES))
    room = height - len(head) - len(tail)
    shown = blocks
    if _height(blocks, width) > room:
        shown = _fitting(blocks, room - len(_more(checkup, len(blocks))), width)
    body = [line for block in shown for line in block_for(block, sys.stdout).splitlines()]
    if shown != blocks:
        body += _more(checkup, len(blocks) - len(shown))
    return [*head, *body, *tail]


def _more(checkup: Checkup, hidden: int) -> list[str]:
    """Where the rest can be read."""
    rest = f"{counted(hidden, 'more finding')}, and all reasons" if hidden else "All reasons"
    option = " --recompute" if checkup.is_recomputed else ""
    return line_for(printable(f"{rest}: lightning-hooks findings {checkup.run}{option}"), sys.stdout).splitlines()


def _verdict(checkup: Checkup) -> str:
    """The sentence on the whole run."""
    run, known, standing = checkup.run, checkup.known, checkup.standing
    steps = "" if checkup.steps is None else f" in {counted(checkup.steps, 'step')}"
    past = sum(finding.severity is not Severity.INFO for finding in known.findings) - len(standing)
    over = f" {counted(past, 'earlier problem')} {'is' if past == 1 else 'are'} over." if past else ""
    if checkup.unjudged:
        return printable(f"{run}: not judged{steps}: {checkup.unjudged}.")
    if standing:
        verdict = f"{run}: not healthy, {counted(len(standing), 'problem')}{steps}.{over}"
    else:
        verdict = f"{run}: healthy, no problem{' stands' if past else ''}{steps}.{over}"
    source = ""
    if checkup.is_recomputed:
        has_watched = has_journal(run)
        source = "The default rules have read its event file" + ("" if has_watched else ": no HealthMonitor was active")
    ends = {
        "The fit has not ended, or was killed.": not known.has_ended,
        f"The fit ended with {checkup.summary.get('error')}.": "error" in checkup.summary,
        f"The health rules stopped after {checkup.summary.get('stopped')}.": "stopped" in checkup.summary,
        f"{source}.": bool(source),
        other_fits(run, known): known.fits > 1,
    }
    return printable(" ".join([verdict, *(text for text, holds in ends.items() if holds)]))


def _what_ran(checkup: Checkup, width: int, most: int = 1000) -> Iterator[str]:
    """Which rules looked, and which could not and why.

    Args:
        checkup: of the run.
        width: of a line.
        most: the most rules that are named in each list.
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
    found = {finding.rule for finding in checkup.known.findings}
    quiet = [name for name in ran if name not in found]
    entries = {
        f"{len(found)} found": [*dict.fromkeys(finding.rule for finding in checkup.known.findings)],
        f"{len(quiet)} silent": quiet,
        "Could not": _by_reason(checkup.reasons("could_not_run")),
        "Failed": _by_reason(checkup.reasons("failed")),
        "Accepted": checkup.names("accepted"),
    }
    for title, names in entries.items():
        if names:
            yield from wrapped(listed(names, most), f"{title:<12}", _INDENT, width)


def _by_reason(reasons: Mapping[str, str]) -> list[str]:
    """Names with their reason; names with one reason share it."""
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
