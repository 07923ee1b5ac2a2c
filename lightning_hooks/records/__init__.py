"""Finished steps: the step view, its consumers, and the layout of event files. Imports neither engine nor Lightning."""

from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.records.run_context import RunContext, RunFacts
from lightning_hooks.records.step_view import StepView

__all__ = ["RunContext", "RunFacts", "StepConsumer", "StepView"]
