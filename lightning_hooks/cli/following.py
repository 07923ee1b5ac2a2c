"""Follows a fit that goes on: prints its findings as its journal grows."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

from lightning_hooks.cli.checkup import Checkup, checkup_of, command_for, folder_of, has_journal, runs_in
from lightning_hooks.cli.screen import verdict_of
from lightning_hooks.errors import RuleError, printable
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.terminal import block_for, line_for
from lightning_hooks.health.text import blocks_of

_POLL: Final = 0.5  # seconds between two reads of the journal


def follow(run: Path, since: int) -> Checkup | None:
    """Print each cause and finding once, and the end of each; return when the fit ends, or at Ctrl-C.

    Args:
        run: the folder of the run, in which a journal may appear later, or a folder above runs, of which the newest is meant.
        since: the first step of the findings that are told.

    Returns:
        The last diagnosis; None if there was no journal.

    Raises:
        RuleError: there is no such folder, or its summary is damaged and there is no journal.
    """
    folder_of(run)
    told: set[tuple[Any, ...]] = set()
    checkup, has_waited = None, False
    try:
        while True:
            run = _newest(run)
            if has_journal(run):
                checkup = checkup_of(run, since=since)
                _tell_new(checkup, told)
                if checkup.known.has_ended:
                    print(line_for(verdict_of(checkup), sys.stdout), flush=True)
                    break
            elif not has_waited:
                has_waited = True
                print(
                    f"Waiting for a HealthMonitor to write into {printable(str(run))}. Without one, of a fit that has ended: "
                    f"{command_for(run)}",
                    file=sys.stderr,
                )
            time.sleep(_POLL)
    except KeyboardInterrupt:
        pass
    return checkup


def _newest(run: Path) -> Path:
    """The run that was written to last below a folder; the folder itself if it is a run, or has none below."""
    if not run.is_dir() or has_journal(run):
        return run
    try:
        return max(runs_in(run), key=lambda each: max((file.stat().st_mtime for file in each.iterdir()), default=0.0))
    except (RuleError, OSError):
        return run


def _tell_new(checkup: Checkup, told: set[tuple[Any, ...]]) -> None:
    """Print the blocks that were not told, and the ends of findings that were.

    A cause is known by its name and any of its findings, because it may stand twice, and may come to explain more findings.
    """
    fit = checkup.known.fit
    for block in blocks_of(checkup.causes, checkup.findings, least=Severity.INFO):
        keys = {(fit, block.cause, number) for number in block.numbers}
        if told.isdisjoint(keys):
            print(block_for(block, sys.stdout), flush=True)
        told |= keys
    for finding in checkup.findings:
        key = (fit, "over", finding.number)
        if finding.is_over is None:
            told.discard(key)
        elif key not in told:
            told.add(key)
            print(printable(f"{finding.fingerprint} is over since step {finding.is_over}."), flush=True)
