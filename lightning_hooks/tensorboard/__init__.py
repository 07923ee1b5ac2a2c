"""Writing a step as one event, and reading a run back. Knows neither Lightning nor the engine."""

from lightning_hooks.tensorboard.reading import Run, Table, read_run
from lightning_hooks.tensorboard.writer import RunWriter, is_tensorboard

__all__ = ["Run", "RunWriter", "Table", "is_tensorboard", "read_run"]
