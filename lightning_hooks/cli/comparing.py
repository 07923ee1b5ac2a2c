"""What `lightning-hooks compare` and `baseline` do with runs. It loads torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from lightning_hooks.cli.checkup import folder_of
from lightning_hooks.cli.progress import Progress, progress_bar
from lightning_hooks.cli.seen_windows import SeenWindows
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


def print_comparison(good: list[Path], run: Path, accept: list[str], form: str) -> int:
    """Print where a run differs from good ones.

    Args:
        good: the folders of good runs, or a baseline.
        run: the folder of the run, or one event file.
        accept: patterns of findings that are meant.
        form: `text`, `json` or `junit`.

    Returns:
        1 if a finding of severity warning or critical stands, else 0.

    Raises:
        RuleError: a pattern names no rule, or a run is missing or has no step views.
    """
    refuse_unknown_rules(accept, REFERENCE_RULES, "--accept")
    folder_of(run)
    seen, of_good = SeenWindows(), SeenWindows()
    reference = reference_of(good, of_good)
    with progress_bar("Comparing steps") as progress:
        diagnosis = compared(reference, run, accept, progress, seen)
    findings, causes, summary = diagnosis.findings, diagnosis.causes, {**diagnosis.summary(), **seen.facts()}
    if form == "json":
        shown = {
            "findings": [finding.to_dict() for finding in findings],
            "causes": [cause.to_dict() for cause in causes],
            "summary": summary,
        }
        print(json.dumps(shown, indent=1, allow_nan=False))
    elif form == "junit":
        known = RunFindings(findings, causes, [], summary, has_ended=True)
        print(junit_of([report_of_run(str(run), known, findings)], "lightning_hooks.compare"))
    else:
        blocks = blocks_of(causes, findings, least=Severity.INFO)
        windows = [
            f"{subject}: {told}; a step there is the last one of its window."
            for subject, each in ((str(run), seen), ("The good runs", of_good))
            if (told := each.sentence())
        ]
        print("\n".join([*filter(None, [as_text(blocks)]), printable(summary["line"]), *map(printable, windows)]))
    return int(any(map(stands, findings)))


def compared(
    reference: Reference,
    run: Path,
    accept: Iterable[str] = (),
    progress: Progress | None = None,
    seen: SeenWindows | None = None,
) -> Diagnosis:
    """The diagnosis of a run by the rules that compare with a reference.

    Args:
        reference: what good runs tell.
        run: the folder of the run, or one event file.
        accept: patterns of findings that are meant.
        progress: told of each step.
        seen: notes which steps the run holds only in windows.

    Raises:
        RuleError: there is no run, or its files hold no step views.
    """
    diagnosis = Diagnosis(reference_rules(reference), tuple(accept), CAUSES_WITH_REFERENCE)
    content = read_run(run)
    total = max((len(steps) for steps, _ in content.scalars.values()), default=0)
    for number, view in enumerate((seen or SeenWindows()).noting(best_views(content, NEEDED)), 1):
        diagnosis.add(view)
        if progress is not None:
            progress(number, total)
    diagnosis.finish()
    return diagnosis


def keep_baseline(runs: list[Path], out: Path) -> None:
    """Write what good runs tell to one file, whose name ends with `.json`.

    Raises:
        RuleError: a run is missing or has no step views, or the file cannot be written.
    """
    if out.suffix != ".json":
        raise RuleError(f"-o must be a file whose name ends with .json, got {out}")
    if not out.parent.is_dir():
        raise RuleError(f"-o: there is no folder {out.parent}")
    seen = SeenWindows()
    reference = reference_of(runs, seen)
    try:
        size = write_baseline(reference, out)
    except OSError as error:
        raise RuleError(f"-o: {str(out)!r} cannot be written ({error.strerror}); choose another file") from None
    print(f"{printable(str(out))}: {len(reference.records)} runs, {reference.rows} rows, {size / 1e3:.0f} kB")
    if told := seen.sentence():
        print(f"Of these runs: {told}; a band there is that of the mean steps of windows.")


def reference_of(sources: list[Path], seen: SeenWindows | None = None) -> Reference:
    """The reference of good runs, or of a baseline.

    Args:
        sources: the folders of good runs, or a baseline.
        seen: notes which steps the runs hold only in windows.

    Raises:
        RuleError: a run is missing or has no step views.
    """

    def views(run: Path) -> Iterator[StepView]:
        folder_of(run)
        return (seen or SeenWindows()).noting(best_views(read_run(run), NEEDED))

    with progress_bar("Reading good runs"):
        return read_reference(sources, views)
