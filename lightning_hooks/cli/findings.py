"""The command `lightning-hooks findings`: what health rules found in a run, from its journal or computed again."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lightning_hooks.errors import RuleError, printable
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.journal import FINDINGS, SUMMARY, read_findings
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.text import as_text, blocks_of
from lightning_hooks.tensorboard.reading import read_run

_POLL: Final = 0.5  # seconds
_PREFIXES: Final = ("", "health/")


def findings(arguments: list[str]) -> int:
    """Print the findings of a run; returns 1 if one of severity warning or critical still holds, else 0."""
    parser = argparse.ArgumentParser("lightning-hooks findings", description="Say what is wrong with a training run.")
    parser.add_argument("run", type=Path, help="the log directory of the run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--since", type=int, default=0, metavar="STEP", help="only findings that began at this step or later")
    parser.add_argument("--follow", action="store_true", help="print findings as the run makes them, until it ends")
    parser.add_argument("--recompute", action="store_true", help="apply the default rules to the event file of the run again")
    args = parser.parse_args(arguments)
    if args.follow and (args.json or args.recompute):
        parser.error("--follow cannot be combined with --json or --recompute")
    if args.follow:
        return _follow(args.run, args.since)
    found, causes, summary = _recomputed(args.run) if args.recompute else _read(args.run)
    found = [finding for finding in found if finding.first_step >= args.since]
    numbers = {finding.number for finding in found}
    causes = [cause for cause in causes if not numbers.isdisjoint(cause.numbers)]
    if args.json:
        shown = {
            "findings": [finding.to_dict() for finding in found],
            "causes": [cause.to_dict() for cause in causes],
            "summary": summary,
        }
        print(json.dumps(shown, indent=1))
    else:
        blocks = blocks_of(causes, found, least=Severity.INFO)
        print("\n".join([*filter(None, [as_text(blocks)]), _last_line(summary, found)]))
    return int(any(map(_stands, found)))


def _stands(finding: Finding) -> bool:
    return finding.severity is not Severity.INFO and finding.is_over is None


def _last_line(summary: Any, found: list[Finding]) -> str:
    line = summary.get("line") if isinstance(summary, dict) else None
    if isinstance(line, str):
        return printable(line)
    return f"The run has not ended; {len(found)} findings so far."


def _read(run: Path) -> tuple[list[Finding], list[Cause], Any]:
    folder = _folder_of(run)
    try:
        known = read_findings(folder)
    except FileNotFoundError:
        reason = f"{run} has no {FINDINGS}: no HealthMonitor was active in this run"
        if (folder / SUMMARY).exists():
            reason = f"{folder / SUMMARY} is damaged, and there is no {FINDINGS} beside it"
        raise RuleError(
            f"{reason}. `lightning-hooks findings {run} --recompute` applies the default rules to its event file"
        ) from None
    return known.findings, known.causes, known.summary


def _folder_of(run: Path) -> Path:
    if not run.exists():
        raise RuleError(f"there is no run {run}")
    return run if run.is_dir() else run.parent


def _recomputed(run: Path) -> tuple[list[Finding], list[Cause], dict[str, Any]]:
    """What the default rules find in the step views of a run, as they would have found it live."""
    diagnosis = Diagnosis()
    for view in _views(run):
        diagnosis.add(view)
    diagnosis.finish()
    return diagnosis.findings, diagnosis.causes, diagnosis.summary()


def _views(path: Path) -> Iterator[Any]:
    """The views of the first training monitor of a run."""
    run = read_run(path)
    failure: RuleError | None = None
    for prefix in _PREFIXES:
        try:
            return run.views(prefix=prefix)
        except RuleError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _follow(run: Path, since: int) -> int:
    """Print each cause and finding once, as the journal grows; ends when the run has written its summary, or with Ctrl-C."""
    folder = _folder_of(run)
    told: set[str] = set()
    stands = False
    try:
        while True:
            # Look for the summary first: what the run wrote before it is read below.
            is_over = (folder / SUMMARY).exists()
            if is_over or (folder / FINDINGS).exists():
                findings, causes, summary = _read(run)
                chosen = [finding for finding in findings if finding.first_step >= since]
                stands = any(map(_stands, chosen))
                for block in blocks_of(causes, chosen, least=Severity.INFO):
                    if block.verdict not in told:
                        told.add(block.verdict)
                        print(as_text([block]), flush=True)
                if is_over:
                    print(_last_line(summary, chosen), flush=True)
                    break
            time.sleep(_POLL)
    except KeyboardInterrupt:
        pass
    return int(stands)
