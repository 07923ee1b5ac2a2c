"""The commands `compare` and `baseline`, which compare a run with good ones. They load torch."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from lightning_hooks.cli.checkup import folder_of
from lightning_hooks.cli.formats import add_formats
from lightning_hooks.cli.progress import Progress, progress_bar
from lightning_hooks.errors import RuleError, printable
from lightning_hooks.health.accepting import refuse_unknown_rules
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.finding import stands
from lightning_hooks.health.journal import RunFindings
from lightning_hooks.health.junit import junit_of
from lightning_hooks.health.outcome import report_of_run
from lightning_hooks.health.reference.baseline import write_baseline
from lightning_hooks.health.reference.causes import CAUSES_WITH_REFERENCE
from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.health.reference.rules import REFERENCE_RULES, reference_rules
from lightning_hooks.health.reference.sources import NEEDED, read_reference
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.text import as_text, blocks_of
from lightning_hooks.records.step_view import StepView
from lightning_hooks.tensorboard.best_views import best_views
from lightning_hooks.tensorboard.reading import read_run

_GOOD: Final = "the log directory of a good run, or a baseline"


def compare(arguments: list[str]) -> int:
    """Print where a run differs from good ones; returns 1 if a finding of severity warning or critical stands, else 0."""
    parser = argparse.ArgumentParser(
        "lightning-hooks compare",
        description="Say where a run differs from good ones by more than another seed explains.",
    )
    parser.add_argument("good", metavar="GOOD", type=Path, nargs="+", help=_GOOD)
    parser.add_argument("run", metavar="RUN", type=Path, help="the log directory of the run to compare")
    parser.add_argument("--accept", metavar="PATTERN", action="append", default=[], help="findings that are meant, as Rule/row")
    add_formats(parser.add_mutually_exclusive_group())
    args = parser.parse_args(arguments)
    refuse_unknown_rules(args.accept, REFERENCE_RULES, "--accept")
    folder_of(args.run)
    with progress_bar("Reading good runs"):
        reference = _reference(args.good)
    with progress_bar("Comparing steps") as progress:
        diagnosis = compared(reference, args.run, args.accept, progress)
    findings, causes, summary = diagnosis.findings, diagnosis.causes, diagnosis.summary()
    if args.format == "json":
        shown = {
            "findings": [finding.to_dict() for finding in findings],
            "causes": [cause.to_dict() for cause in causes],
            "summary": summary,
        }
        print(json.dumps(shown, indent=1))
    elif args.format == "junit":
        known = RunFindings(findings, causes, [], summary, has_ended=True)
        print(junit_of([report_of_run(str(args.run), known, findings)], "lightning_hooks.compare"))
    else:
        blocks = blocks_of(causes, findings, least=Severity.INFO)
        print("\n".join([*filter(None, [as_text(blocks)]), printable(summary["line"])]))
    return int(any(map(stands, findings)))


def compared(reference: Reference, run: Path, accept: Iterable[str] = (), progress: Progress | None = None) -> Diagnosis:
    """The diagnosis of a run by the rules that compare with a reference.

    Args:
        reference: what good runs tell.
        run: the folder of the run, or one event file.
        accept: patterns of findings that are meant.
        progress: told of each step.

    Raises:
        RuleError: there is no run, or its files hold no step views.
    """
    diagnosis = Diagnosis(reference_rules(reference), tuple(accept), CAUSES_WITH_REFERENCE)
    content = read_run(run)
    total = max((len(steps) for steps, _ in content.scalars.values()), default=0)
    for number, view in enumerate(best_views(content, NEEDED), 1):
        diagnosis.add(view)
        if progress is not None:
            progress(number, total)
    diagnosis.finish()
    return diagnosis


def baseline(arguments: list[str]) -> None:
    """Write what good runs tell to one file."""
    parser = argparse.ArgumentParser(
        "lightning-hooks baseline",
        description="Keep what good runs tell in one small file, for `compare` and `HealthMonitor(reference=…)`.",
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="the log directory of a good run")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the file to write; its name ends with .json")
    args = parser.parse_args(arguments)
    if args.out.suffix != ".json":
        raise RuleError(f"-o must be a file whose name ends with .json, got {args.out}")
    if not args.out.parent.is_dir():
        raise RuleError(f"-o: there is no folder {args.out.parent}")
    with progress_bar("Reading good runs"):
        reference = _reference(args.runs)
    try:
        size = write_baseline(reference, args.out)
    except OSError as error:
        raise RuleError(f"-o: {str(args.out)!r} cannot be written ({error.strerror}); choose another file") from None
    print(f"{printable(str(args.out))}: {len(reference.records)} runs, {reference.rows} rows, {size / 1e3:.0f} kB")


def _reference(sources: list[Path]) -> Reference:
    return read_reference(sources, _views)


def _views(run: Path) -> Iterator[StepView]:
    folder_of(run)
    return best_views(read_run(run), NEEDED)
