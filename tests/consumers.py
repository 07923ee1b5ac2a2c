"""A consumer for tests."""

from __future__ import annotations

from lightning_hooks import StepConsumer, StepView


class Keeps(StepConsumer):
    """Keeps the views that it is given."""

    def __init__(self) -> None:
        self.views: list[StepView] = []

    def consume(self, view: StepView) -> None:
        self.views.append(view)
