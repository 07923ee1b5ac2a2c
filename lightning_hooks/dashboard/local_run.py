"""Reads a run for the page from the event files and the findings in a local folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lightning_hooks.dashboard.facts import about_rows, json_object, time_and_size
from lightning_hooks.dashboard.findings import checks_of, has_ended, shown_findings, shown_summary
from lightning_hooks.dashboard.records import Records
from lightning_hooks.dashboard.source import Floats, Steps
from lightning_hooks.health.fits import Fit, events_in, fits_in, journals_beside
from lightning_hooks.health.journal import FINDINGS, summary_of
from lightning_hooks.recorder.record import FlightRecord
from lightning_hooks.tensorboard.local_tables import LocalTables
from lightning_hooks.tensorboard.messages import buckets, strings
from lightning_hooks.tensorboard.run_index import RunIndex
from lightning_hooks.tensorboard.tags import ABOUT, FOUND, PLUGIN, TABLE
from lightning_hooks.untrusted import UnreadableError, read_bytes

_ABOUT: Final = f"{TABLE}/{ABOUT}/"
_FOUND: Final = f"{FOUND}/"
_LARGEST: Final = 256_000_000  # bytes of a journal or a summary


class LocalRun(LocalTables):
    """A run whose event files are in a local folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(RunIndex(path))
        self.path = path
        self._written, self._changes = self._written_findings(), 0  # changes of the files beside the event files
        self._records = Records(path)
        # Caches the fits in the journals, together with the times and sizes that the journal files had when they were read.
        self._cached_fits: tuple[Any, list[Fit]] | None = None
        # `about` caches the facts about rows, together with the version of the run at which it read them.
        self._cached_about: tuple[int, Mapping[str, Any]] | None = None

    @property
    def version(self) -> int:
        return self._index.version + self._changes

    @property
    def history(self) -> int:
        """A number that changes when a resume began another file, or the run was deleted and started again."""
        return self._index.history

    def refresh(self) -> None:
        self._index.refresh()
        before, self._written = self._written, self._written_findings()
        self._changes += (before != self._written) + self._records.refresh()

    def _written_findings(self) -> tuple[tuple[int, int] | None, ...]:
        journals = journals_beside(self.path / FINDINGS) or [self.path / FINDINGS]
        return tuple(time_and_size(file) for journal in journals for file in (journal, summary_of(journal)))

    def scalar_tags(self) -> list[str]:
        return self._index.tags("number")

    def scalar(self, tag: str) -> tuple[Steps, Floats]:
        return self._index.numbers(tag)

    def histogram_tags(self) -> list[str]:
        return self._index.tags("histogram")

    def histograms(self, tags: Sequence[str], steps: int) -> dict[str, list[tuple[int, Floats, Floats]]]:
        read = self._index.histograms(tags, steps)
        return {tag: [(step, *buckets(payload)) for step, payload in points] for tag, points in read.items()}

    def about(self) -> Mapping[str, Any]:
        if self._cached_about is None or self._cached_about[0] != self.version:
            about: dict[str, Any] = {}
            for tag in self._index.tags("strings", PLUGIN):
                if tag.startswith(_ABOUT):
                    points = self._index.points(tag)
                    # Read the last point only, if the tag has any.
                    for i in range(len(points.steps))[-1:]:
                        about.update(about_rows(strings(self._index.payload(points, i))))
            self._cached_about = self.version, about
        return self._cached_about[1]

    def findings(self) -> list[Mapping[str, Any]] | None:
        try:
            text = _text_of(self._journal())
        except OSError as error:
            return [{"rule": FINDINGS, "why": f"the file cannot be read ({error.strerror or error})"}]
        tensors = [*dict.fromkeys(tensor for tensor, _ in self.tables())]
        # Without a journal, take the findings from the summary: the disk may have been full, or only the event file was copied.
        return shown_summary(self._summary(), tensors) if text is None else shown_findings(text, tensors)

    def checks(self) -> Mapping[str, Any] | None:
        try:
            text = _text_of(self._journal())
        except OSError:
            return None
        # If the last fit has not ended, ignore the summary: an earlier fit in the same folder wrote it.
        return checks_of(self._summary()) if has_ended(text or "") else None

    def records(self) -> Mapping[str, FlightRecord]:
        return self._records.found()

    def fits(self) -> int:
        return max(len(self._fits()), 1)

    def _journal(self) -> Path:
        """The journal into which the newest fit wrote."""
        fits = self._fits()
        return fits[-1].journal if fits else self.path / FINDINGS

    def _fits(self) -> list[Fit]:
        written = self._written_findings()
        if self._cached_fits is None or self._cached_fits[0] != written:
            journals = journals_beside(self.path / FINDINGS)
            try:
                fits = fits_in([(journal, events_in(read_bytes(journal, _LARGEST))) for journal in journals])
            except (OSError, UnreadableError):
                return []
            self._cached_fits = written, fits
        return self._cached_fits[1]

    def _summary(self) -> Mapping[str, Any]:
        """What the summary beside the journal says, or else the event file."""
        try:
            written = _text_of(summary_of(self._journal()))
        except OSError:
            return {}
        return self._stored_summary() if written is None else json_object([written])

    def _stored_summary(self) -> Mapping[str, Any]:
        for tag in self._index.tags("strings", PLUGIN):
            if tag.startswith(_FOUND):
                points = self._index.points(tag)
                return json_object(strings(self._index.payload(points, len(points.steps) - 1)) if len(points.steps) else [])
        return {}

    @property
    def place(self) -> str | None:
        return str(self.path)

    def problems(self) -> list[str]:
        return [*self._index.problems(), *self._records.problems()]


def _text_of(file: Path) -> str | None:
    """The text of a file; None if there is no such file."""
    try:
        return read_bytes(file, _LARGEST).decode(errors="replace")
    except UnreadableError as error:
        if file.is_dir() or not file.exists():
            return None
        raise OSError(str(error)) from error
