"""The consumer behind `StatsMonitor.latest` and `instrument(…).record`."""

from __future__ import annotations

from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.records.layout import Layout
from lightning_hooks.records.step_view import StepView


class Latest(StepConsumer):
    """Keeps the last view of each stage; its dictionary is made when it is asked for.

    Args:
        prefix: put before every tag.
    """

    def __init__(self, prefix: str = "") -> None:
        self.views: dict[str, StepView] = {}
        self._prefix = prefix
        self._layouts: dict[str, Layout] = {}  # of the last view of each stage

    def consume(self, view: StepView) -> None:
        """Keep it."""
        self.views[view.stage] = view

    def values(self) -> dict[str, float]:
        """Every measured row and the global numbers of the last views, by tag."""
        out: dict[str, float] = {}
        for stage, view in self.views.items():
            layout = self._layouts.get(stage)
            if layout is None or layout.rows is not view.rows or layout.due != view.due:
                layout = self._layouts[stage] = Layout(view.rows, view.due, view.stage, self._prefix)
            out.update(layout.fill(view).scalars)
        return out
