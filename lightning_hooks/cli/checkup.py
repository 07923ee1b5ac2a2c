"""The diagnosis of one run as `lightning-hooks doctor` shows it, and the runs that a path stands for.

Nothing here loads torch, unless a run has no journal and the rules read its event file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lightning_hooks.cli.progress import Progress, silent
from lightning_hooks.errors import RuleError, counted, printable
from lightning_hooks.health.finding import Cause, Finding, problems_of, stands
from lightning_hooks.health.journal import FINDINGS, SUMMARY, RunFindings, read_findings
from lightning_hooks.tensorboard.run_files import PATTERN, event_files, runs_below


class Checkup(NamedTuple):
    """The diagnosis of one run.

    Args:
        run: the folder of the run, or a file in it.
        known: the findings.
        is_recomputed: whether the default rules have read the event file, because the run has no journal or a user asked.
        since: the first step of the findings that are told.
    """

    run: Path
    known: RunFindings
    is_recomputed: bool = False
    since: int = 0

    @property
    def findings(self) -> list[Finding]:
        """The findings that are told."""
        return [finding for finding in self.known.findings if finding.first_step >= self.since]

    @property
    def causes(self) -> list[Cause]:
        """The causes of the findings that are told."""
        numbers = {finding.number for finding in self.findings}
        return [cause for cause in self.known.causes if self.since <= 0 or not numbers.isdisjoint(cause.numbers)]

    @property
    def standing(self) -> list[Finding]:
        """The findings that make the run unhealthy."""
        return [finding for finding in self.findings if stands(finding)]

    @property
    def earlier(self) -> list[str]:
        """The names of the problems that stand and are not told, because they began before `since`."""
        before = [finding for finding in self.known.findings if finding.first_step < self.since and stands(finding)]
        return problems_of(before, self.known.causes)

    @property
    def is_healthy(self) -> bool:
        """Whether no finding stands, told or not, and the loss shows that the training has learned."""
        is_right = not self.standing and not self.earlier and not self.unjudged
        return is_right and self.summary.get("has_learned") is True

    @property
    def course(self) -> str:
        """What the loss did, if that does not show that the training has learned; empty if it does, or is not known."""
        course = self.summary.get("course")
        return course if isinstance(course, str) and self.summary.get("has_learned") is not True else ""

    @property
    def unjudged(self) -> str:
        """Why nothing can be said of the run, although no finding stands; empty if it is healthy or not."""
        if self.standing:
            return ""
        if "stopped" in self.summary:
            return printable(f"its health rules stopped after {self.summary['stopped']}")
        if self.names("ran"):
            return ""
        if self.known.damaged:
            which = f"{counted(self.known.damaged, 'line')} of" if self.known.events else "no line of"
            return f"{which} its journal {'can' if not self.known.events else 'cannot'} be read"
        if self.is_recomputed:
            return "no rule could look at the steps in its event file"
        if self.known.has_ended:
            return "no rule looked before the fit ended" if self.summary else self.unread
        # A rule that has found something has looked. The journal says nothing of rules that have looked and found nothing.
        has_found = any(event.finding is not None for event in self.known.events)
        return "" if has_found else "the fit has not ended, or was killed, perhaps before any rule looked"

    @property
    def unread(self) -> str:
        """Why nobody knows which rules looked at a fit that has ended; empty if its summary says it."""
        if not self.known.has_ended or self.known.summary is not None:
            return ""
        is_earlier = self.known.fit < self.known.fits
        return "which rules looked is not kept of an earlier fit" if is_earlier else f"its {SUMMARY} is missing or damaged"

    @property
    def summary(self) -> Mapping[str, Any]:
        """The summary of the run; empty if the fit has not ended, or its file is missing or damaged."""
        return self.known.summary or {}

    @property
    def steps(self) -> int | None:
        """The number of steps that were diagnosed; None if it is not known."""
        steps = self.summary.get("steps")
        return steps if isinstance(steps, int) else None

    def names(self, key: str) -> list[str]:
        """The entries of a list of the summary, such as the rules that ran; empty if the summary has none."""
        entries = self.summary.get(key)
        return [str(entry) for entry in entries] if isinstance(entries, list) else []

    def reasons(self, key: str) -> dict[str, str]:
        """The entries of a mapping of the summary, such as why rules could not run; empty if the summary has none."""
        entries = self.summary.get(key)
        return {str(name): str(why) for name, why in entries.items()} if isinstance(entries, dict) else {}

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as plain values."""
        return {
            "run": str(self.run),
            "healthy": False if self.standing else True if self.is_healthy else None,
            **({"problem": self.unjudged} if self.unjudged else {}),
            "source": "event file" if self.is_recomputed else "journal",
            "has_ended": self.known.has_ended,
            "fit": self.known.fit,
            "fits": self.known.fits,
            "steps": self.steps,
            "course": self.course,
            **({"earlier": self.earlier} if self.earlier else {}),
            "findings": [finding.to_dict() for finding in self.findings],
            "causes": [cause.to_dict() for cause in self.causes],
            "ran": self.names("ran"),
            "could_not_run": self.reasons("could_not_run"),
            "failed": self.reasons("failed"),
            "accepted": self.names("accepted"),
            **({"windows": self.summary["windows"]} if "windows" in self.summary else {}),
            "error": self.summary.get("error"),
        }


def checkup_of(
    run: Path, *, fit: int | None = None, since: int = 0, recompute: bool = False, progress: Progress = silent
) -> Checkup:
    """The diagnosis of a run: from its journal, or if there is none, by the default rules from its event file.

    Args:
        run: the folder of the run, or a file in it. A journal among the files stands for its own fits.
        fit: the number of a fit that has a journal; by default the newest.
        since: the first step of the findings that are told.
        recompute: read the event file also if there is a journal.
        progress: told of each step that is read from an event file.

    Raises:
        RuleError: the run has neither a journal nor step views, or no fit of this number.
    """
    if fit is not None or (has_journal(run) and not recompute):
        return Checkup(run, _read(run, fit), since=since)
    from lightning_hooks.cli.recomputing import recomputed

    return Checkup(run, recomputed(run, progress), is_recomputed=True, since=since)


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


def _read(run: Path, fit: int | None) -> RunFindings:
    """What the journals of a run say."""
    folder = folder_of(run)
    try:
        # A fit that shared its folder with another one has a numbered journal, which is given by its name.
        return read_findings(run if run.suffix == Path(FINDINGS).suffix else folder, fit)
    except FileNotFoundError:
        reason = f"{run} has no {FINDINGS}: no HealthMonitor was active in this run"
        if (folder / SUMMARY).exists():
            reason = f"{folder / SUMMARY} is damaged, and there is no {FINDINGS} beside it"
        advice = f"`{command_for(run)} --recompute` applies the default rules to its event file"
        raise RuleError(f"{reason}{runs_below(run)}. {advice}") from None


def command_for(run: Path) -> str:
    """The command that shows a run.

    Example:
        >>> command_for(Path("my runs/a"))
        "lightning-hooks doctor 'my runs/a'"
    """
    return f"lightning-hooks doctor {shlex.quote(printable(str(run)))}"


def other_fits(run: Path, known: RunFindings) -> str:
    """Which of the fits of a folder is shown, and how to read another one; empty if there is only one.

    Example:
        >>> other_fits(Path("runs/a"), RunFindings([], [], [], None, has_ended=True, fit=2, fits=2))
        'This is fit 2 of 2 in the folder. The one before: lightning-hooks doctor runs/a --fit 1'
    """
    if known.fits == 1:
        return ""
    command = command_for(folder_of(run) if run.exists() else run)
    other = f"The one before: {command} --fit {known.fit - 1}" if known.fit > 1 else f"The newest: {command}"
    return f"This is fit {known.fit} of {known.fits} in the folder. {other}"


def runs_in(path: Path) -> list[Path]:
    """The runs that a path stands for: itself, or the runs in the folders below it in the order of their names.

    Raises:
        RuleError: there is no run.
    """
    if not path.exists():
        raise RuleError(f"there is no run {path}")
    if not path.is_dir() or has_journal(path) or event_files(path):
        return [path]
    files = [file for pattern in (PATTERN, FINDINGS) for file in path.rglob(pattern) if file.is_file()]
    if not files:
        raise RuleError(f"there is no run in {path}: neither an event file of TensorBoard nor {FINDINGS}")
    return sorted({file.parent for file in files}, key=_by_number)


def _by_number(path: Path) -> list[tuple[int, str]]:
    """A sort key by which `version_10` comes after `version_2`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", str(path))]
