"""What health rules find in the event file of a run. It loads torch, so import it only where a run has no journal."""

from __future__ import annotations

from pathlib import Path

from lightning_hooks.cli.progress import Progress, silent
from lightning_hooks.cli.seen_windows import SeenWindows
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.journal import RunFindings
from lightning_hooks.health.rules import DEFAULT_RULES
from lightning_hooks.tensorboard.best_views import best_views
from lightning_hooks.tensorboard.reading import read_run


def recomputed(run: Path, progress: Progress = silent) -> RunFindings:
    """What the default rules find in the step views of a run, as they would have found it live.

    Rules that look live see every step. If the file holds windows of steps, `lacks` of the summary says which steps it lacks.

    Args:
        run: the folder of the run, or one event file.
        progress: told of each step.

    Raises:
        RuleError: the files of the run hold no step views.
    """
    content = read_run(run)
    # The number of views is not known before they are read. Estimate it: the monitor writes some scalar at every step.
    total = max((len(steps) for steps, _ in content.scalars.values()), default=0)
    diagnosis = Diagnosis()
    needed = {tensor for rule in DEFAULT_RULES for tensor, _ in rule.needs}
    seen = SeenWindows()
    for number, view in enumerate(seen.noting(best_views(content, needed)), 1):
        diagnosis.add(view)
        progress(number, total)
    diagnosis.finish()
    summary = {**diagnosis.summary(), **seen.facts()}
    if lacks := seen.sentence():
        summary["lacks"] = f"{lacks}, which the rules read as one step each, so that what lasted less may be missed"
    return RunFindings(diagnosis.findings, diagnosis.causes, [], summary, has_ended=True)
