"""The consumer that writes steps to the loggers: one event to each TensorBoard, one dictionary to every other logger."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightning_hooks.engine.plan.plan import Plan
from lightning_hooks.errors import HooksError
from lightning_hooks.hooks import for_each
from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.records.layout import Layout
from lightning_hooks.records.row_index import Due, RowIndex
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules.patterns import select
from lightning_hooks.tensorboard import RunWriter, is_tensorboard

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


def pinned_names(plan: Plan, patterns: Sequence[str]) -> set[str]:
    """The names of rows whose scalars are never merged; raises `NoMatchError` where patterns match none."""
    targets = list({row.name: row.target for row in plan.rows}.values())
    return {target.name for target in select(targets, patterns, where="scalars")} if patterns else set()


class LoggerWriter(StepConsumer):
    """Writes to the loggers of a trainer, in the process of rank 0.

    Args:
        trainer: whose loggers.
        prefix: put before every tag.
        max_scalars: how many scalars are written before rows are merged along the module tree.
        scalars: patterns of names whose scalars are never merged.
    """

    def __init__(self, trainer: Trainer, prefix: str = "", max_scalars: int = 500, scalars: Sequence[str] = ()) -> None:
        self._writes = trainer.is_global_zero
        self._loggers = list(trainer.loggers)
        self._writers: list[RunWriter] = []
        self._prefix = prefix
        self._max_scalars = max_scalars
        self._patterns = list(scalars)
        self._pinned: set[str] = set()
        self._layouts: dict[tuple[RowIndex, str, Due], Layout] = {}
        self._warned: set[str] = set()

    def start(self, plan: Plan) -> None:
        """Find the rows whose scalars are never merged.

        Raises:
            NoMatchError: a pattern of `scalars` matches no row.
        """
        self._pinned = pinned_names(plan, self._patterns)

    def consume(self, view: StepView) -> None:
        """Write a step to every logger, also if an earlier one fails."""
        if not (self._writes and self._loggers):
            return
        entry = self._layout(view).fill(view)

        def write(logger: Any) -> None:
            writer = self._writer(logger)
            if writer is not None:
                writer.write(entry)
            else:
                logger.log_metrics(entry.scalars, step=entry.step)

        for_each(write, self._loggers)

    def write_start(self, markdown: str, charts: Sequence[tuple[str, str]], step: int, *, transforms: bool = False) -> None:
        """Write what is watched, and how the charts belong together, to each TensorBoard.

        Args:
            markdown: the match report.
            charts: tensor and statistic of each, as they will be logged.
            step: of the coming batch.
            transforms: whether there are transforms that report.
        """
        for writer in self._boards():
            writer.write_start(markdown, charts, step, self._prefix, transforms=transforms)

    def write_capture(self, tensors: Mapping[str, tuple[Tensor, Sequence[int] | None]], folder: str, step: int) -> None:
        """Show tensors of a batch in each TensorBoard: feature maps as images, vectors [N, D] in the projector.

        Args:
            tensors: [N, …] by the name of the module, with the samples of the data set that they are, if that is known.
            folder: what goes before the names.
            step: the x-axis of `self.log`.
        """
        for writer in self._boards():
            for name, (tensor, samples) in tensors.items():
                try:
                    writer.write_tensor(f"{folder}/{name}", tensor, step, samples)
                except (OSError, HooksError) as error:
                    warnings.warn(f"{name} is not shown in TensorBoard: {error}", stacklevel=2)

    def _boards(self) -> list[RunWriter]:
        every = map(self._writer, self._loggers if self._writes else ())
        return [writer for writer in every if writer is not None]

    def _writer(self, logger: Any) -> RunWriter | None:
        experiment = getattr(logger, "experiment", None)  # a Logger need not have one
        known = next((writer for writer in self._writers if writer.writes_to(experiment)), None)
        if known is None and is_tensorboard(experiment):
            known = RunWriter(experiment)
            self._writers.append(known)
        return known

    def _layout(self, view: StepView) -> Layout:
        key = view.rows, view.stage, view.due
        if key not in self._layouts:
            layout = Layout(view.rows, view.due, view.stage, self._prefix, self._max_scalars, self._pinned)
            self._layouts[key] = layout
            if layout.depth is not None and view.stage not in self._warned:
                self._warned.add(view.stage)
                level = f"level {layout.depth} of the module tree" if layout.depth else "one row for all"
                warnings.warn(
                    f"{layout.scalars} scalars are more than max_scalars={self._max_scalars}: they are merged "
                    f"exactly at {level}; the table has them all, scalars= keeps chosen names in full",
                    stacklevel=2,
                )
        return self._layouts[key]
