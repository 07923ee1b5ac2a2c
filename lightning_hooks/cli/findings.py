"""The command `lightning-hooks findings`: what health rules found in a run, from its journal or computed again."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lightning_hooks.cli.diagnoses import folder_of, other_fits, read
from lightning_hooks.cli.formats import add_formats
from lightning_hooks.cli.progress import progress_bar
from lightning_hooks.errors import counted, printable
from lightning_hooks.health.finding import Finding, stands
from lightning_hooks.health.journal import FINDINGS, SUMMARY, RunFindings
from lightning_hooks.health.junit import junit_of
from lightning_hooks.health.outcome import report_of_run
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.text import as_text, blocks_of

_POLL: Final = 0.5  # seconds between two reads of the journal


def findings(arguments: list[str]) -> int:
    """Print the findings of a run; returns 1 if one of severity warning or critical still holds, else 0."""
    parser = argparse.ArgumentParser("lightning-hooks findings", description="Say what is wrong with a training run.")
    parser.add_argument("run", type=Path, help="the log directory of the run")
    add_formats(parser.add_mutually_exclusive_group())
    parser.add_argument("--since", type=int, default=0, metavar="STEP", help="only findings that began at this step or later")
    parser.add_argument("--fit", type=int, metavar="NUMBER", help="a fit of a folder with several, from 1; default: the newest")
    parser.add_argument("--follow", action="store_true", help="print findings as the fit makes them, until it ends")
    parser.add_argument("--recompute", action="store_true", help="apply the default rules to the event file of the run again")
    args = parser.parse_args(arguments)
    if args.follow and (args.format != "text" or args.recompute or args.fit is not None):
        parser.error("--follow cannot be combined with --json, --junit, --fit or --recompute")
    if args.recompute and args.fit is not None:
        parser.error("--recompute reads the event file of all fits of a folder, so it cannot be combined with --fit")
    if args.follow:
        return _follow(args.run, args.since)
    known = _known(args.run, args.fit, recompute=args.recompute)
    found = [finding for finding in known.findings if finding.first_step >= args.since]
    numbers = {finding.number for finding in found}
    causes = [cause for cause in known.causes if not numbers.isdisjoint(cause.numbers)]
    if args.format == "json":
        shown = {
            "findings": [finding.to_dict() for finding in found],
            "causes": [cause.to_dict() for cause in causes],
            "summary": known.summary,
            "has_ended": known.has_ended,
            "fit": known.fit,
            "fits": known.fits,
        }
        print(json.dumps(shown, indent=1))
    elif args.format == "junit":
        print(junit_of([report_of_run(str(args.run), known, found)], "lightning_hooks.findings"))
    else:
        blocks = blocks_of(causes, found, least=Severity.INFO)
        print("\n".join(filter(None, [as_text(blocks), _last_line(known, found), other_fits(args.run, known)])))
    return int(any(map(stands, found)))


def _known(run: Path, fit: int | None, *, recompute: bool) -> RunFindings:
    if not recompute:
        return read(run, fit)
    from lightning_hooks.cli.recomputing import recomputed

    with progress_bar("Reading steps") as progress:
        return recomputed(run, progress)


def _last_line(known: RunFindings, found: Sequence[Finding]) -> str:
    summary = known.summary or {}
    count = counted(len(found), "finding")
    if not known.has_ended:
        return f"The fit has not ended, or was killed; {count} so far."
    if known.fit < known.fits and known.summary is None:
        return f"The fit has ended with {count}; which rules looked is not kept of an earlier fit."
    if not isinstance(summary.get("line"), str):
        return f"The fit has ended with {count}; its {SUMMARY} is missing or damaged."
    error = f" The fit ended with {summary['error']}" if "error" in summary else ""
    return printable(f"{summary['line']}{error}")


def _follow(run: Path, since: int) -> int:
    """Print each cause and finding once, as the journal grows, and the end of each; returns when the fit ends, or at Ctrl-C."""
    folder = folder_of(run)
    told: set[tuple[Any, ...]] = set()
    is_unhealthy = False
    try:
        while True:
            if (folder / SUMMARY).exists() or (folder / FINDINGS).exists():
                known = read(run)
                found = [finding for finding in known.findings if finding.first_step >= since]
                is_unhealthy = any(map(stands, found))
                _tell_new(known, found, told)
                if known.has_ended:
                    print(_last_line(known, found), flush=True)
                    break
            time.sleep(_POLL)
    except KeyboardInterrupt:
        pass
    return int(is_unhealthy)


def _tell_new(known: RunFindings, found: Sequence[Finding], told: set[tuple[Any, ...]]) -> None:
    """Print the blocks that were not told, and the ends of findings that were.

    A cause is known by its name and any of its findings, because it may stand twice, and may come to explain more findings.
    """
    for block in blocks_of(known.causes, found, least=Severity.INFO):
        keys = {(known.fit, block.cause, number) for number in block.numbers}
        if told.isdisjoint(keys):
            print(as_text([block]), flush=True)
        told |= keys
    for finding in found:
        key = (known.fit, "over", finding.number)
        if finding.is_over is None:
            told.discard(key)
        elif key not in told:
            told.add(key)
            print(printable(f"{finding.fingerprint} is over since step {finding.is_over}."), flush=True)
