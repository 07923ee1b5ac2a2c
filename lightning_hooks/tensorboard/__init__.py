"""Writes each step into an event file as one event, and reads a run back from its event files.

This package imports neither Lightning nor the packages that run hooks.
"""

from lightning_hooks.tensorboard.reading import Run, Table, read_run
from lightning_hooks.tensorboard.writer import StepEventWriter, is_tensorboard

__all__ = ["Run", "StepEventWriter", "Table", "is_tensorboard", "read_run"]
