"""The steps at which histograms are written: they take more space in an event file than scalars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lightning_hooks.records.entry import LogEntry
from lightning_hooks.records.layout import EntryLayout
from lightning_hooks.records.step_view import StepView


class HistogramPace:
    """Fills the entries of training steps with at least `interval` steps between two histograms of one tag.

    In a stage other than `train` every histogram is written.

    Args:
        interval: in steps, at least 1.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._drawn = _Written()
        self._rows = _Written()
        # For each layout the first step at which one of its histograms may be due: no tag is looked at before.
        self._draws_from: dict[EntryLayout, int] = {}

    def fill(self, layout: EntryLayout, view: StepView, times: int = 1) -> LogEntry:
        """The entry of a step: its scalars, and the histograms that are due.

        Args:
            layout: of the entry.
            view: of the step.
            times: by how much longer the interval is while views are written for windows of so many steps.
        """
        step, interval = view.step, self._interval * times
        # A window may have measured its histograms at any of its steps. Count from the first one, so that none is missed.
        first = view.steps[0]
        if view.stage != "train" or interval == 1:
            return layout.fill(view)
        if step < self._draws_from.get(layout, step):
            return layout.fill(view, histograms=(), rows=())
        drawn = self._drawn.due(layout.histogram_tags, step, interval)
        is_same = layout.row_tags is layout.histogram_tags
        rows = drawn if is_same else self._rows.due(layout.row_tags, step, interval)
        entry = layout.fill(view, histograms=drawn, rows=rows)
        # A row without measurements has no histogram in `entry`, and stays due.
        self._drawn.note(entry.histogram_tags, first)
        self._draws_from[layout] = self._drawn.next_due(layout.histogram_tags, step, interval)
        if not is_same:
            written = (
                f"{layout.prefix}{each.tensor}_histogram/{each.names[row]}"
                for each in entry.row_histograms
                for row in each.written.tolist()
            )
            self._rows.note(written, first)
            self._draws_from[layout] = min(self._draws_from[layout], self._rows.next_due(layout.row_tags, step, interval))
        return entry


class _Written:
    """The steps at which histograms were written last, by tag. An interval is the least number of steps between two."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}

    def due(self, tags: Sequence[str], step: int, interval: int) -> list[str]:
        """The tags whose histograms may be written at a step."""
        return [tag for tag in tags if step - self._at.get(tag, -interval) >= interval]

    def note(self, tags: Iterable[str], step: int) -> None:
        """Histograms of these tags were written at a step."""
        self._at.update(dict.fromkeys(tags, step))

    def next_due(self, tags: Sequence[str], step: int, interval: int) -> int:
        """The first step at which a histogram of one of these tags may be due; without tags an interval from `step` on."""
        return interval + min((self._at.get(tag, -interval) for tag in tags), default=step)
