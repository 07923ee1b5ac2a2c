"""The steps at which histograms are written: they take more space in an event file than scalars."""

from __future__ import annotations

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
        self._drawn_at: dict[str, int] = {}  # the step of the last histogram, by tag
        # For each layout the first step at which one of its histograms may be due: no tag is looked at before.
        self._draws_from: dict[EntryLayout, int] = {}

    def fill(self, layout: EntryLayout, view: StepView) -> LogEntry:
        """The entry of a step: its scalars, and the histograms that are due."""
        step, interval = view.step, self._interval
        if view.stage != "train" or interval == 1:
            return layout.fill(view)
        if step < self._draws_from.get(layout, step):
            return layout.fill(view, histograms=())
        due = [tag for tag in layout.histogram_tags if step - self._drawn_at.get(tag, -interval) >= interval]
        entry = layout.fill(view, histograms=due)
        # A row without measurements has no histogram in `entry`, and stays due.
        self._drawn_at.update(dict.fromkeys(entry.histogram_tags, step))
        last_drawn = (self._drawn_at.get(tag, -interval) for tag in layout.histogram_tags)
        self._draws_from[layout] = interval + min(last_drawn, default=step)
        return entry
