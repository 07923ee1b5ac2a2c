"""Where a step goes: one event to each TensorBoard, one dictionary to every other logger."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer

from lightning_hooks.engine.plan import Plan
from lightning_hooks.stats.record import StepRecord
from lightning_hooks.tensorboard import RunWriter, is_tensorboard


class Outlet:
    """The loggers of a trainer, from the process that writes.

    Args:
        trainer: whose loggers.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._writes = trainer.is_global_zero
        self._loggers = list(trainer.loggers)
        self._writers: dict[int, RunWriter] = {}

    def write_start(self, markdown: str, plan: Plan, prefix: str, step: int, *, transforms: bool = False) -> None:
        """Write what is watched, and how the charts belong together, to each TensorBoard.

        Args:
            markdown: the matched taps.
            plan: of the monitor.
            prefix: of its tags.
            step: of the coming batch.
            transforms: whether there are transforms that report.
        """
        if not self._writes:
            return
        pairs = list(dict.fromkeys((row.tensor, stat) for row in plan.rows for stat in row.stats if stat != "histogram"))
        for logger in self._loggers:
            writer = self._writer(logger)
            if writer is not None:
                writer.write_start(markdown, pairs, step, prefix, transforms=transforms)

    def write(self, record: StepRecord) -> None:
        """Write one step to every logger."""
        if not self._writes:
            return
        for logger in self._loggers:
            writer = self._writer(logger)
            if writer is not None:
                writer.write(record)
            else:
                logger.log_metrics(record.scalars, step=record.step)

    def _writer(self, logger: Any) -> RunWriter | None:
        experiment = getattr(logger, "experiment", None)  # a Logger need not have one
        if not is_tensorboard(experiment):
            return None
        if id(experiment) not in self._writers:
            self._writers[id(experiment)] = RunWriter(experiment)
        return self._writers[id(experiment)]
