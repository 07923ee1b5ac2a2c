"""What health rules found in a run, from its journal. Nothing here loads torch."""

from __future__ import annotations

import shlex
from pathlib import Path

from lightning_hooks.errors import RuleError, printable
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


def read(run: Path, fit: int | None = None) -> RunFindings:
    """What the journals of a run say.

    Args:
        run: its folder, or a file in it. A journal among the files stands for its own fits.
        fit: the number of a fit; by default the newest.

    Raises:
        RuleError: the run has no journal, or only a damaged summary, or no fit of this number.
    """
    folder = folder_of(run)
    try:
        # A fit that shared its folder with another one has a numbered journal, which is given by its name.
        return read_findings(run if run.suffix == Path(FINDINGS).suffix else folder, fit)
    except FileNotFoundError:
        reason = f"{run} has no {FINDINGS}: no HealthMonitor was active in this run"
        if (folder / SUMMARY).exists():
            reason = f"{folder / SUMMARY} is damaged, and there is no {FINDINGS} beside it"
        advice = f"`lightning-hooks findings {run} --recompute` applies the default rules to its event file"
        raise RuleError(f"{reason}{runs_below(run)}. {advice}") from None


def other_fits(run: Path, known: RunFindings) -> str:
    """Which of the fits of a folder is shown, and how to read another one; empty if there is only one.

    Example:
        >>> other_fits(Path("runs/a"), RunFindings([], [], [], None, has_ended=True, fit=2, fits=2))
        'This is fit 2 of 2 in the folder. The one before: lightning-hooks findings runs/a --fit 1'
    """
    if known.fits == 1:
        return ""
    command = f"lightning-hooks findings {shlex.quote(str(folder_of(run) if run.exists() else run))}"
    other = f"The one before: {command} --fit {known.fit - 1}" if known.fit > 1 else f"The newest: {command}"
    return printable(f"This is fit {known.fit} of {known.fits} in the folder. {other}")
