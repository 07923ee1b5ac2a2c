"""Finished steps: the step view, its consumers, the layout of files. Knows statistics, neither engine nor Lightning."""

from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.consumer import Publisher, StepConsumer
from lightning_hooks.records.step_view import Series, StepView

__all__ = ["Publisher", "RowIndex", "Series", "StepConsumer", "StepView"]
