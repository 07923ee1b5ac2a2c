"""Where a step goes: one event to each TensorBoard, one dictionary to every other logger."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor

from lightning_hooks.errors import HooksError
from lightning_hooks.stats.record import StepRecord
from lightning_hooks.taps import for_each
from lightning_hooks.tensorboard import RunWriter, is_tensorboard


def _log(logger: Any, record: StepRecord) -> None:
    logger.log_metrics(record.scalars, step=record.step)


class Outlet:
    """The loggers of a trainer, from the process that writes.

    Args:
        trainer: whose loggers.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._writes = trainer.is_global_zero
        self._loggers = list(trainer.loggers)
        self._writers: dict[int, RunWriter] = {}

    @property
    def only_tensorboard(self) -> bool:
        """Whether there is no logger but TensorBoards; other ones may want to hear of a step before the next begins."""
        return not self._writes or all(self._writer(logger) is not None for logger in self._loggers)

    def write_start(
        self, markdown: str, charts: Sequence[tuple[str, str]], prefix: str, step: int, *, transforms: bool = False
    ) -> None:
        """Write what is watched, and how the charts belong together, to each TensorBoard.

        Args:
            markdown: the matched taps.
            charts: tensor and statistic of each, as they will be logged.
            prefix: of its tags.
            step: of the coming batch.
            transforms: whether there are transforms that report.
        """
        if not self._writes:
            return
        for logger in self._loggers:
            writer = self._writer(logger)
            if writer is not None:
                writer.write_start(markdown, charts, step, prefix, transforms=transforms)

    def write(self, *records: StepRecord) -> None:
        """Write steps to every logger."""
        if not self._writes:
            return
        for logger in self._loggers:
            writer = self._writer(logger)
            if writer is not None:
                writer.write(*records)
            else:
                for_each(partial(_log, logger), records)

    def write_capture(self, tensors: Mapping[str, tuple[Tensor, Sequence[int] | None]], folder: str, step: int) -> None:
        """Show tensors of a batch in each TensorBoard: feature maps as images, vectors [N, D] in the projector.

        Args:
            tensors: [N, …] by the name of the module, with the samples of the data set that they are, if that is known.
            folder: what goes before the names.
            step: the x-axis of `self.log`.
        """
        if not self._writes:
            return
        for writer in [writer for writer in map(self._writer, self._loggers) if writer is not None]:
            for name, (tensor, samples) in tensors.items():
                try:
                    writer.write_tensor(f"{folder}/{name}", tensor, step, samples)
                except (OSError, HooksError) as error:
                    warnings.warn(f"{name} is not shown in TensorBoard: {error}", stacklevel=2)

    def _writer(self, logger: Any) -> RunWriter | None:
        experiment = getattr(logger, "experiment", None)  # a Logger need not have one
        known = self._writers.get(id(experiment))  # it holds the experiment, so its id stays its own
        if known is None and is_tensorboard(experiment):
            known = self._writers[id(experiment)] = RunWriter(experiment)
        return known
