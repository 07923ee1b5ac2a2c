"""Journal: the events of a diagnosis in `findings.jsonl`, one JSON object a line, and the summary in `summary.json`."""

from __future__ import annotations

import json
import os
import warnings
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightning_hooks.errors import RuleError, printable, shortened
from lightning_hooks.health.finding import Cause, Event, Finding

FINDINGS: Final = "findings.jsonl"
SUMMARY: Final = "summary.json"
_MOST_WAITING: Final = 10_000  # lines that wait for space on the disk


class Journal:
    """Appends events to `findings.jsonl`. Each line is with the operating system when `write` returns, so it survives SIGKILL.

    An error of the disk is a warning. The lines wait, and are written as soon as the disk takes them again.

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
            self._warn(f"{self.path} cannot be written ({error}); findings wait in memory until it can")

    def _write_waiting(self) -> None:
        if self._waiting and self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._is_torn = _ends_within_a_line(self.path)
            # Without a buffer, a write either reaches the operating system or raises.
            self._file = open(self.path, "ab", buffering=0)
        while self._waiting:
            line = b"\n" * self._is_torn + self._waiting[0]
            self._is_torn = True
            if self._file.write(line) != len(line):
                raise OSError("only a part of a line was written")
            self._is_torn = False
            self._waiting.popleft()

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json` beside the events; a reader never sees half of it."""
        path = self.path.with_name(SUMMARY)
        unfinished = path.with_suffix(".json.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(summary, indent=1, allow_nan=False), encoding="utf-8")
            unfinished.replace(path)
        except OSError as error:
            self._warn(f"{path} cannot be written ({error})")

    def close(self) -> None:
        """Write what waits and close the file."""
        self.write(())
        if self._waiting:
            warnings.warn(f"{self.path}: {len(self._waiting)} findings could not be written", stacklevel=2)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(message, stacklevel=3)


def _ends_within_a_line(path: Path) -> bool:
    """Whether the last line of a file has no end, because the process that wrote it was killed."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class RunFindings(NamedTuple):
    """What a journal says.

    Args:
        findings: as they stand after the last event.
        causes: likewise.
        events: all events, in order.
        summary: of `summary.json`; None if the run has not ended.
    """

    findings: list[Finding]
    causes: list[Cause]
    events: list[Event]
    summary: dict[str, Any] | None


def read_events(path: str | os.PathLike[str]) -> list[Event]:
    """The events of a `findings.jsonl`, or of the folder that has one. Damaged lines are ignored with a warning.

    Raises:
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    path = path / FINDINGS if path.is_dir() else path
    events = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            events.append(Event.from_dict(json.loads(line)))
        except (RuleError, ValueError, RecursionError) as error:
            warnings.warn(printable(f"{path}: line {number} is ignored: {shortened(str(error), 200)}"), stacklevel=2)
    return events


def read_findings(path: str | os.PathLike[str]) -> RunFindings:
    """The findings and causes of a run, from its folder or its `findings.jsonl`. Damaged lines are ignored with a warning.

    A run of which nothing was found has only a summary.

    Raises:
        FileNotFoundError: the run has no journal, or only a damaged summary.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    summary = _read_summary(folder / SUMMARY)
    events = [] if summary is not None and not (folder / FINDINGS).exists() else read_events(path)
    findings: dict[tuple[int, str, int], Finding] = {}
    causes: dict[str, Cause] = {}
    for event in events:
        if event.finding is not None:
            findings[event.finding.number, event.finding.rule, event.finding.first_step] = event.finding
        elif event.cause is not None:
            causes.pop(event.cause.name, None)
            if event.kind == "cause":
                causes[event.cause.name] = event.cause
    return RunFindings(list(findings.values()), list(causes.values()), events, summary)


def _read_summary(path: Path) -> dict[str, Any] | None:
    try:
        summary = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(printable(f"{path} is ignored: {shortened(str(error), 200)}"), stacklevel=3)
        return None
    return summary if isinstance(summary, dict) else None
