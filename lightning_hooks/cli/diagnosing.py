"""What `lightning-hooks doctor` prints of runs, and the exit code."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightning_hooks.cli.checkup import Checkup, checkup_of, runs_in
from lightning_hooks.cli.following import follow
from lightning_hooks.cli.options import Parser
from lightning_hooks.cli.progress import Progress, progress_bar
from lightning_hooks.cli.screen import screen, table
from lightning_hooks.errors import RuleError
from lightning_hooks.health.junit import junit_of
from lightning_hooks.health.outcome import Report, report_of_run


def diagnose(args: argparse.Namespace, parser: Parser) -> int:
    """Print the diagnosis of runs.

    Args:
        args: the options of the command.
        parser: tells of options that do not fit the number of runs.

    Returns:
        1 if a finding of severity warning or critical stands in one of them, else 2 if one cannot be judged, else 0.

    Raises:
        RuleError: no run can be diagnosed.
    """
    if args.is_followed:
        if len(args.runs) > 1:
            parser.error(f"--follow takes one RUN, got {len(args.runs)}")
        return _code([follow(args.runs[0], args.since)])
    runs = list(dict.fromkeys(run for path in args.runs for run in runs_in(path)))
    if args.fit is not None and len(runs) > 1:
        parser.error(f"--fit takes one RUN, got {len(runs)}")
    checkups = _checkups(runs, args)
    if not any(isinstance(checkup, Checkup) for checkup in checkups):
        raise RuleError("; ".join(map(str, checkups)))
    if args.format == "json":
        print(json.dumps(_json(runs, checkups), indent=1, allow_nan=False))
    elif args.format == "junit":
        print(junit_of(map(_report, runs, checkups), "lightning_hooks.doctor"))
    elif args.format == "markdown":
        from lightning_hooks.cli.issue import issue_of, newest_sick

        diagnosed = [checkup for checkup in checkups if isinstance(checkup, Checkup)]
        print(issue_of(newest_sick(diagnosed), len(diagnosed) - 1))
    elif len(runs) == 1 or args.is_whole:
        shown = [
            "\n".join(screen(each, is_whole=args.is_whole)) if isinstance(each, Checkup) else "\n".join(table([run], [each]))
            for run, each in zip(runs, checkups, strict=True)
        ]
        print("\n\n".join(shown))
    else:
        print("\n".join(table(runs, checkups)))
    return _code(checkups)


def _checkups(runs: Sequence[Path], args: argparse.Namespace) -> list[Checkup | RuleError]:
    """The diagnosis of each run, or why it has none."""
    if len(runs) == 1:
        with progress_bar("Reading steps") as progress:
            return [checkup_of(runs[0], fit=args.fit, since=args.since, recompute=args.recompute, progress=progress)]
    with progress_bar("Reading runs") as progress:
        return list(_each(runs, args, progress))


def _each(runs: Sequence[Path], args: argparse.Namespace, progress: Progress) -> Iterator[Checkup | RuleError]:
    for number, run in enumerate(runs):
        progress(number, len(runs))
        try:
            yield checkup_of(run, since=args.since, recompute=args.recompute)
        except RuleError as error:
            yield error


def _code(checkups: Sequence[Checkup | RuleError | None]) -> int:
    """The exit code; a run without a diagnosis is not judged."""
    diagnosed = [checkup for checkup in checkups if isinstance(checkup, Checkup)]
    if any(checkup.standing for checkup in diagnosed):
        return 1
    return 2 if len(diagnosed) < len(checkups) or any(checkup.unjudged for checkup in diagnosed) else 0


def _json(runs: Sequence[Path], checkups: Sequence[Checkup | RuleError]) -> dict[str, object]:
    entries = [
        each.to_dict() if isinstance(each, Checkup) else {"run": str(run), "problem": str(each)}
        for run, each in zip(runs, checkups, strict=True)
    ]
    is_healthy = all(isinstance(each, Checkup) and each.is_healthy for each in checkups)
    return {"healthy": False if _code(checkups) == 1 else True if is_healthy else None, "runs": entries}


def _report(run: Path, checkup: Checkup | RuleError) -> Report:
    if isinstance(checkup, RuleError):
        return Report(str(run), (), str(checkup))
    return report_of_run(str(run), checkup.known, checkup.findings)
