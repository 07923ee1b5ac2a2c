"""Finished steps: the step view, its consumers, the layout of files. Knows statistics, neither engine nor Lightning."""

from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.records.run_context import RunContext, RunFacts
from lightning_hooks.records.step_view import StepView

__all__ = ["RunContext", "RunFacts", "StepConsumer", "StepView"]
