"""Reads what a `HealthMonitor` wrote beside the event files of a run, and no event file: fast enough for a list of runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from lightning_hooks.dashboard.facts import json_object, time_and_size
from lightning_hooks.dashboard.findings import checks_of, has_ended, shown_findings, shown_summary
from lightning_hooks.health.fits import Fit, events_in, fits_in, journals_beside
from lightning_hooks.health.journal import FINDINGS, summary_of
from lightning_hooks.untrusted import UnreadableError, read_bytes

Stored = Callable[[], Mapping[str, Any]]

_LARGEST: Final = 256_000_000  # bytes of a journal or a summary


class WrittenFindings:
    """The journals and summaries in the folder of a run.

    Args:
        folder: the folder, or the one event file of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._journal_path = folder / FINDINGS
        # Caches the fits in the journals, together with the times and sizes that the journal files had when they were read.
        self._cached_fits: tuple[Any, list[Fit]] | None = None

    def stamp(self) -> tuple[tuple[int, int] | None, ...]:
        """The times and sizes of the files, which change when something is written."""
        journals = journals_beside(self._journal_path) or [self._journal_path]
        return tuple(time_and_size(file) for journal in journals for file in (journal, summary_of(journal)))

    def findings(self, tensors: Collection[str] = (), stored: Stored = dict) -> list[Mapping[str, Any]] | None:
        """The findings of the newest fit; None if no file has any.

        Args:
            tensors: the tensors of the tables of the run, with the prefixes of monitors.
            stored: returns the summary in the event file, which serves if no file beside it has one.
        """
        try:
            text = _text_of(self._journal())
        except OSError as error:
            return [{"rule": FINDINGS, "why": f"the file cannot be read ({error.strerror or error})"}]
        # Without a journal, take the findings from the summary: the disk may have been full, or only the event file was copied.
        return shown_summary(self._summary(stored), tensors) if text is None else shown_findings(text, tensors)

    def checks(self, stored: Stored = dict) -> Mapping[str, Any] | None:
        """Which health rules looked, see `checks_of`; None if nobody knows, as while the fit goes on."""
        try:
            text = _text_of(self._journal())
        except OSError:
            return None
        # If the last fit has not ended, ignore the summary: an earlier fit in the same folder wrote it.
        return checks_of(self._summary(stored)) if has_ended(text or "") else None

    def fits(self) -> int:
        """How many fits wrote into the folder."""
        return max(len(self._fits()), 1)

    @property
    def exists(self) -> bool:
        """Whether a journal or a summary is there; otherwise the event file may hold the summary."""
        return any(self.stamp())

    def _journal(self) -> Path:
        """The journal into which the newest fit wrote."""
        fits = self._fits()
        return fits[-1].journal if fits else self._journal_path

    def _fits(self) -> list[Fit]:
        stamp = self.stamp()
        if self._cached_fits is None or self._cached_fits[0] != stamp:
            journals = journals_beside(self._journal_path)
            try:
                fits = fits_in([(journal, events_in(read_bytes(journal, _LARGEST))) for journal in journals])
            except (OSError, UnreadableError):
                return []
            self._cached_fits = stamp, fits
        return self._cached_fits[1]

    def _summary(self, stored: Stored) -> Mapping[str, Any]:
        """What the summary beside the journal says, or else the event file."""
        try:
            written = _text_of(summary_of(self._journal()))
        except OSError:
            return {}
        return stored() if written is None else json_object([written])


def _text_of(file: Path) -> str | None:
    """The text of a file; None if there is no such file."""
    try:
        return read_bytes(file, _LARGEST).decode(errors="replace")
    except UnreadableError as error:
        if file.is_dir() or not file.exists():
            return None
        raise OSError(str(error)) from error
