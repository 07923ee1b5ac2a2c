"""Journal: the events of a diagnosis in `findings.jsonl`, one JSON object a line, and the summary in `summary.json`."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightning_hooks.errors import RuleError, printable, shortened, shown
from lightning_hooks.health.finding import Cause, Event, Finding
from lightning_hooks.health.fits import events_in, fits_in, journals_beside
from lightning_hooks.health.own_file import close_own, numbered, open_own
from lightning_hooks.health.window import WINDOW
from lightning_hooks.untrusted import MissingError, UnreadableError, read_bytes, read_json
from lightning_hooks.whole_files import write_whole

FINDINGS: Final = "findings.jsonl"
SUMMARY: Final = "summary.json"
_LARGEST: Final = 256_000_000  # bytes of a journal that is read
_MOST_WARNINGS: Final = 10  # about damaged lines of a journal
_MOST_WAITING: Final = 10_000  # lines that are kept in memory while the disk takes none; older lines are lost


class Journal:
    """Appends events to `findings.jsonl`. Each line is with the operating system when `write` returns, so it survives SIGKILL.

    An error of the disk is one warning. The lines wait, and are written as soon as the disk takes them again. If the file is
    removed, that is a warning too, and a new file takes what follows.
    If another fit writes into the folder at the same time, this one gets a file of its own, `findings-2.jsonl`, with a warning.

    Args:
        folder: the folder of the run; it is created with the first event.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     journal = Journal(folder)
        ...     journal.write([Event("cause", 70, cause=Cause("BadBatch", "One batch differs.", ("LossSpike",)))])
        ...     journal.close()
        ...     [cause.name for cause in read_findings(folder).causes]
        ['BadBatch']
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / FINDINGS
        self._file: Any = None
        self._waiting: deque[bytes] = deque(maxlen=_MOST_WAITING)
        self._is_torn = False
        self._has_warned = False

    def write(self, events: Iterable[Event]) -> None:
        """Append events."""
        self._waiting.extend(json.dumps(event.to_dict(), allow_nan=False).encode() + b"\n" for event in events)
        try:
            self._write_waiting()
        except OSError as error:
            self._warn_once(
                f"{self.path} cannot be written ({error}); findings wait in memory until it can, and are lost if it cannot "
                "before the training ends"
            )

    def _write_waiting(self) -> None:
        if self._waiting and self._is_removed:
            self._close_file()
            self._warn_once(f"{self.path} was removed while the fit ran; what follows is in a new file")
        if self._waiting and self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file, number = open_own(self.path)
            if number > 1:
                self._move_to(numbered(self.path, number))
            self._is_torn = _ends_within_a_line(self.path)
        while self._waiting:
            line = b"\n" * self._is_torn + self._waiting[0]
            self._is_torn = True
            if self._file.write(line) != len(line):
                raise OSError("only a part of a line was written")
            self._is_torn = False
            self._waiting.popleft()

    def _move_to(self, path: Path) -> None:
        message = (
            f"another fit writes into {self.path} now, so the findings of this one are in {path.name}, which "
            f"`lightning-hooks doctor {path}` shows; give each fit a folder of its own"
        )
        self.path = path
        warnings.warn(printable(message), stacklevel=5)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json` beside the events; a reader never sees half of it."""
        path = summary_of(self.path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(summary, indent=1, allow_nan=False))
        except OSError as error:
            self._warn_once(f"{path} cannot be written ({error}); the training goes on")

    def close(self) -> None:
        """Write what waits and close the file."""
        self.write(())
        self._close_file()

    @property
    def _is_removed(self) -> bool:
        """Whether the open file has no name any more, so that what is written is lost."""
        return self._file is not None and not os.fstat(self._file.fileno()).st_nlink and not self.path.exists()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            close_own(file)

    def _warn_once(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(printable(message), stacklevel=3)


def summary_of(path: Path) -> Path:
    """The summary that belongs to a journal.

    Example:
        >>> summary_of(Path("findings.jsonl")).name, summary_of(Path("findings-2.jsonl")).name
        ('summary.json', 'summary-2.json')
    """
    return path.with_name(path.name.replace("findings", "summary", 1)).with_suffix(".json")


def _ends_within_a_line(path: Path) -> bool:
    """Whether the last line of a file has no end, because the process that wrote it was killed."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class RunFindings(NamedTuple):
    """What a journal and its summary say about one fit of a folder.

    Args:
        findings: as they stand after the last event.
        causes: likewise.
        events: of the fit, in order.
        summary: of `summary.json`; None if the fit has not ended, a later one has overwritten the file, or it is damaged.
        has_ended: whether the fit has ended. One that was killed has not.
        fit: the number of the fit among those of the folder, from 1 in the order in which they began.
        fits: how many the folder has.
        damaged: the number of lines of its journal that cannot be read.
    """

    findings: list[Finding]
    causes: list[Cause]
    events: list[Event]
    summary: dict[str, Any] | None
    has_ended: bool
    fit: int = 1
    fits: int = 1
    damaged: int = 0


def read_events(path: str | os.PathLike[str]) -> list[Event]:
    """The events of a `findings.jsonl`, or of the folder that has one. Damaged lines are ignored with a warning.

    Raises:
        FileNotFoundError: there is no such file.
        RuleError: it is not a regular file, or is larger than 256 MB.
    """
    path = Path(path)
    return _read_journal(path / FINDINGS if path.is_dir() else path)[0]


def _read_journal(path: Path) -> tuple[list[Event], int]:
    """The events of a journal, and the number of damaged lines."""
    damaged: list[int] = []

    def warn(number: int, reason: str) -> None:
        damaged.append(number)
        if len(damaged) <= _MOST_WARNINGS:
            warnings.warn(printable(f"{path}: line {number} is ignored: {shortened(reason, 200)}"), stacklevel=5)

    try:
        content = read_bytes(path, _LARGEST)
    except MissingError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    events = events_in(content, warn)
    if len(damaged) > _MOST_WARNINGS:
        warnings.warn(printable(f"{path}: {len(damaged) - _MOST_WARNINGS} more lines are ignored"), stacklevel=3)
    return events, len(damaged)


def read_findings(path: str | os.PathLike[str], fit: int | None = None) -> RunFindings:
    """The findings and causes of a run. Damaged lines are ignored with a warning.

    If the fit has ended, the findings are those of its summary, which are complete also if the journal is not.

    Args:
        path: the folder of the run, or a journal in it.
        fit: the number of a fit, from 1 in the order in which they began. Default: the newest of the folder or journal.

    Raises:
        FileNotFoundError: the run has no journal, or only a damaged summary.
        RuleError: there is no fit of this number, or a journal is not a regular file or larger than 256 MB.
    """
    path = Path(path)
    first = (path if path.is_dir() else path.parent) / FINDINGS
    journals = journals_beside(first)
    if path.is_file() and path not in journals:
        journals = [path]
    # Read the events first. A fit writes its summary before its `end` event, so after an `end` the summary is that of this fit.
    read = {journal: _read_journal(journal) for journal in journals}
    fits = fits_in([(journal, events) for journal, (events, _) in read.items()])
    alone = None if fits else _of_summary_alone(summary_of(first), first)
    count = max(len(fits), 1)
    if fit is not None and not 1 <= fit <= count:
        raise RuleError(f"fit must be from 1 to {count}, the number of fits in {path}, got {fit}")
    if alone is not None:
        return alone
    number = fit or max(number for number, each in enumerate(fits, 1) if path not in journals or each.journal == path)
    chosen = fits[number - 1]
    marks = [event.kind for event in chosen.events if event.kind in ("begin", "end")]
    has_ended = marks[-1] == "end" if marks else summary_of(chosen.journal).exists()
    # If the fit has not ended, or another one followed it in its journal, the `summary.json` is that of another fit.
    summary = _read_summary(summary_of(chosen.journal)) if has_ended and chosen.is_last else None
    findings, causes = _of_summary(summary or {}, summary_of(chosen.journal)) or standing(chosen.events)
    return RunFindings(findings, causes, chosen.events, summary, has_ended, number, len(fits), read[chosen.journal][1])


def _of_summary_alone(path: Path, journal: Path) -> RunFindings:
    """What a summary without a journal says."""
    summary = _read_summary(path)
    if summary is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(journal))
    findings, causes = _of_summary(summary, path) or ([], [])
    return RunFindings(findings, causes, [], summary, has_ended=True)


def _of_summary(summary: Mapping[str, Any], path: Path) -> tuple[list[Finding], list[Cause]] | None:
    """The findings and causes that a summary holds; None if it holds none, or damaged ones."""
    if "findings" not in summary or "causes" not in summary:
        return None
    try:
        findings = [Finding.from_dict(each) for each in summary["findings"]]
        return findings, [Cause.from_dict(each) for each in summary["causes"]]
    except (RuleError, TypeError) as error:
        warnings.warn(printable(f"{path}: its findings are ignored: {shortened(str(error), 200)}"), stacklevel=3)
        return None


def standing(events: Iterable[Event]) -> tuple[list[Finding], list[Cause]]:
    """The findings and causes of the last fit as they stand after its last event."""
    findings: dict[int, Finding] = {}
    causes: list[Cause] = []
    for event in events:
        if event.kind == "begin":
            findings, causes = {}, []
        elif event.finding is not None:
            findings[event.finding.number] = event.finding
        elif event.cause is not None:
            causes = [each for each in causes if each.name != event.cause.name or _stands(each, findings, event.step)]
            causes += [event.cause] if event.kind == "cause" else []
    explained = {number: cause.name for cause in causes for number in cause.numbers}
    return [replace(each, cause=explained.get(each.number)) for each in findings.values()], causes


def _stands(cause: Cause, findings: Mapping[int, Finding], step: int) -> bool:
    """Whether a cause stays as it was, because all its findings are long over: the diagnosis explains recent findings only."""
    ends = [findings[number].is_over for number in cause.numbers if number in findings]
    return bool(ends) and all(end is not None and end < step - WINDOW for end in ends)


def _read_summary(path: Path) -> dict[str, Any] | None:
    try:
        summary = read_json(path)
        if isinstance(summary, dict):
            return summary
        reason = f"it must hold an object, got {shown(summary)}"
    except MissingError:
        return None
    except UnreadableError as error:
        reason = str(error)
    warnings.warn(printable(f"{path} is ignored: {shortened(reason, 200)}"), stacklevel=3)
    return None
