"""What health rules found in a run, from its journal. Nothing here loads torch."""

from __future__ import annotations

from pathlib import Path

from lightning_hooks.errors import RuleError
from lightning_hooks.health.journal import FINDINGS, SUMMARY, RunFindings, read_findings
from lightning_hooks.tensorboard.run_files import runs_below


def folder_of(run: Path) -> Path:
    """The folder of a run, which may be named by a file in it.

    Raises:
        RuleError: there is no such folder or file.
    """
    if not run.exists():
        raise RuleError(f"there is no run {run}")
    return run if run.is_dir() else run.parent


def has_journal(run: Path) -> bool:
    """Whether a `HealthMonitor` has written into the folder of a run."""
    folder = folder_of(run)
    return any((folder / name).exists() for name in (FINDINGS, SUMMARY))


def read(run: Path) -> RunFindings:
    """What the journal of a run says.

    Raises:
        RuleError: the run has no journal, or only a damaged summary.
    """
    folder = folder_of(run)
    try:
        # A fit that shared its folder with another one has a numbered journal, which is given by its name.
        return read_findings(run if run.suffix == Path(FINDINGS).suffix else folder)
    except FileNotFoundError:
        reason = f"{run} has no {FINDINGS}: no HealthMonitor was active in this run"
        if (folder / SUMMARY).exists():
            reason = f"{folder / SUMMARY} is damaged, and there is no {FINDINGS} beside it"
        advice = f"`lightning-hooks findings {run} --recompute` applies the default rules to its event file"
        raise RuleError(f"{reason}{runs_below(run)}. {advice}") from None
