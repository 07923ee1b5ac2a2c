"""Reads a run for the page from the event files and the findings in a local folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lightning_hooks.dashboard.facts import about_rows, json_object
from lightning_hooks.dashboard.records import Records
from lightning_hooks.dashboard.source import Floats, Steps
from lightning_hooks.dashboard.written_findings import WrittenFindings
from lightning_hooks.recorder.record import FlightRecord
from lightning_hooks.tensorboard.local_tables import LocalTables
from lightning_hooks.tensorboard.messages import buckets, strings
from lightning_hooks.tensorboard.row_histograms import RowHistograms, with_rows
from lightning_hooks.tensorboard.run_index import RunIndex
from lightning_hooks.tensorboard.tags import ABOUT, FOUND, PLUGIN, TABLE

_ABOUT: Final = f"{TABLE}/{ABOUT}/"
_FOUND: Final = f"{FOUND}/"


class LocalRun(LocalTables):
    """A run whose event files are in a local folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(RunIndex(path))
        self.path = path
        self._row_histograms = RowHistograms(self._index)
        self._written = WrittenFindings(path)
        self._stamp, self._changes = self._written.stamp(), 0  # changes of the files beside the event files
        self._records = Records(path)
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
        before, self._stamp = self._stamp, self._written.stamp()
        self._changes += (before != self._stamp) + self._records.refresh()

    def scalar_tags(self) -> list[str]:
        return self._index.tags("number")

    def scalar(self, tag: str) -> tuple[Steps, Floats]:
        return self._index.numbers(tag)

    def histogram_tags(self) -> list[str]:
        return with_rows(self._index.tags("histogram"), self._row_histograms.tags, self._row_histograms.tensors)

    def histograms(self, tags: Sequence[str], steps: int) -> dict[str, list[tuple[int, Floats, Floats]]]:
        of_rows = self._row_histograms.tags
        found = self._row_histograms.read([tag for tag in tags if tag in of_rows], steps)
        drawn = self._index.histograms([tag for tag in tags if tag not in of_rows], steps)
        found |= {tag: [(step, *buckets(payload)) for step, payload in points] for tag, points in drawn.items()}
        return {tag: found[tag] for tag in tags}

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
        return self._written.findings([*dict.fromkeys(tensor for tensor, _ in self.tables())], self._stored_summary)

    def checks(self) -> Mapping[str, Any] | None:
        return self._written.checks(self._stored_summary)

    def records(self) -> Mapping[str, FlightRecord]:
        return self._records.found()

    def fits(self) -> int:
        return self._written.fits()

    def _stored_summary(self) -> Mapping[str, Any]:
        for tag in self._index.tags("strings", PLUGIN):
            if tag.startswith(_FOUND):
                points = self._index.points(tag)
                return json_object(strings(self._index.payload(points, len(points.steps) - 1)) if len(points.steps) else [])
        return {}

    def times(self) -> tuple[float, float] | None:
        known = [each for file in self._index.files for each in file.wall_times if math.isfinite(each) and each > 0]
        return (min(known), max(known)) if known else None

    @property
    def place(self) -> str | None:
        return str(self.path)

    def problems(self) -> list[str]:
        return [*self._index.problems(), *self._records.problems()]
