"""The loggers of a run, and the consumer that writes steps to them: events to a TensorBoard, dictionaries to the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightning_hooks.callbacks._ours import OurCallback
from lightning_hooks.callbacks._run import LightningRun
from lightning_hooks.callbacks._trainer import deferred, is_log_step
from lightning_hooks.errors import HooksError, RuleError, did_you_mean
from lightning_hooks.hooks import for_each
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.records.facts import StepFacts
from lightning_hooks.records.layout import Layout, Levels, LogEntry
from lightning_hooks.records.limits import Limits
from lightning_hooks.records.saved_facts import changes
from lightning_hooks.records.step_view import StepView
from lightning_hooks.tensorboard import RunWriter, is_tensorboard

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer


def as_loggers(loggers: Any) -> tuple[str, ...]:
    """The choice of loggers as a tuple.

    Raises:
        RuleError: it holds something other than names.
    """
    found = (loggers,) if isinstance(loggers, str) else loggers
    if not isinstance(found, Sequence) or isinstance(found, bytes) or not all(isinstance(name, str) and name for name in found):
        raise RuleError(f"loggers must be 'all', 'tensorboard', names of classes of loggers, or an empty list, got {loggers!r}")
    return tuple(found)


def logger_writer(callback: OurCallback, trainer: Trainer, run: LightningRun, **options: Any) -> LoggerWriter:
    """The consumer that writes to the loggers that a callback chooses; on ranks other than 0 it writes nothing.

    Where none of them is a TensorBoard, and a callback of the trainer has a `logdir`, an event file there joins them: one that
    all callbacks share.
    """
    found: list[Any] = []
    if trainer.is_global_zero:
        found = [logger for logger in trainer.loggers if _is_chosen(logger, callback.loggers)]
        logdir = run.logdir_of(callback)
        if logdir is not None and not trainer.fast_dev_run and not any(map(_is_board, found)):  # type: ignore[attr-defined]
            found.append(run.own_board(logdir))
        if found and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            _warn_of_unknown(callback.loggers, trainer.loggers)
    return LoggerWriter(found, deferred(trainer, is_log_step, False), callback.prefix, **options)


def _warn_of_unknown(chosen: Sequence[str], loggers: Sequence[Any]) -> None:
    known = {"all", "tensorboard"}.union(*map(_names, loggers))
    there = [type(logger).__name__ for logger in loggers]
    for name in chosen:
        if name not in known:
            has = f"it has {', '.join(there) or 'none'}"
            warnings.warn(f"loggers: no logger of the Trainer is a {name!r}{did_you_mean(name, there, 1)}; {has}", stacklevel=2)


def _names(logger: Any) -> set[str]:
    return {kind.__name__ for kind in type(logger).__mro__}


def _is_chosen(logger: Any, chosen: Sequence[str]) -> bool:
    return "all" in chosen or not _names(logger).isdisjoint(chosen) or ("tensorboard" in chosen and _is_board(logger))


def _is_board(logger: Any) -> bool:
    return is_tensorboard(getattr(logger, "experiment", None))  # a Logger need not have one


class LoggerWriter(StepConsumer):
    """Writes each watched step to every TensorBoard, and to other loggers the steps at which Lightning logs.

    Args:
        loggers: what to write to; anything with `log_metrics`, or with an `experiment` that is a `SummaryWriter`.
        logs_at: whether Lightning logs at a step of training.
        prefix: put before every tag.
        histogram_every_n_steps: how many steps are between two writes of a histogram at least.
        failed: takes the loggers that raise, with their errors.

    Attributes:
        limits: on what is written; None for none.
    """

    def __init__(
        self,
        loggers: Sequence[Any],
        logs_at: Callable[[int], bool],
        prefix: str = "",
        histogram_every_n_steps: int = 1,
        failed: list[tuple[Any, Exception]] | None = None,
    ) -> None:
        self.loggers = list(loggers)
        self.limits: Limits | None = None
        self._failed = [] if failed is None else failed
        self._logs_at = logs_at
        self._prefix = prefix
        self._histogram_every = histogram_every_n_steps
        self._drawn_at: dict[str, int] = {}  # the step of the last histogram, by tag
        self._draws_from: dict[Layout, int] = {}  # the first step at which one of its histograms may be due
        self._writers: list[RunWriter] = []
        self._layouts: dict[tuple[RowIndex, str, Due], Layout] = {}
        self._stored_facts: StepFacts | None = None  # those that the event files have
        self._missed: dict[str, bool] = {}  # of other loggers, whether they have got no step of training yet

    def consume(self, view: StepView) -> None:
        """Write a step to the loggers, also if an earlier one fails."""
        logs = view.stage != "train" or self._logs_at(view.step)
        due: list[tuple[Any, RunWriter | None]] = []
        for logger in self.loggers:
            writer = self._writer(logger)
            if writer is not None or logs:
                due.append((logger, writer))
            if writer is None and view.stage == "train":
                name = type(logger).__name__
                self._missed[name] = self._missed.get(name, True) and not logs
        if not due:
            return
        layout = self._layout(view)
        entry = self._filled(layout, view)
        if view.facts is not None and view.facts is not self._stored_facts:
            changed = changes(self._stored_facts, view.facts)
            entry = replace(entry, facts=changed, monitor=self._prefix)
            self._stored_facts = view.facts

        def write(each: tuple[Any, RunWriter | None]) -> None:
            logger, writer = each
            try:
                if writer is not None:
                    writer.write(entry)
                else:
                    logger.log_metrics(entry.scalars, step=entry.step)
            except Exception as error:
                self._failed.append((logger, error))
                raise

        for_each(write, due)

    def skip_failed(self, failed: Sequence[tuple[Any, Exception]]) -> list[Exception]:
        """Write no more to loggers that a monitor has stopped at: on a full disk what is left is for the module's own log.

        Args:
            failed: the loggers with their errors.

        Returns:
            The errors of those that are skipped from now on.
        """
        errors = {id(logger): error for logger, error in failed}
        lost = [errors[id(logger)] for logger in self.loggers if id(logger) in errors]
        self.loggers = [logger for logger in self.loggers if id(logger) not in errors]
        return lost

    def close(self, error: BaseException | None) -> None:
        """Say which loggers have got nothing because no watched step is one at which Lightning logs."""
        missed = [name for name, nothing in self._missed.items() if nothing]
        if missed and error is None:
            warnings.warn(
                f"{', '.join(missed)} got no statistics: no watched step was one at which Lightning logs; a smaller "
                "Trainer(log_every_n_steps=…), or an every_n_steps that divides it, changes that",
                stacklevel=2,
            )

    def write_start(
        self,
        markdown: str,
        charts: Sequence[tuple[str, str]],
        step: int,
        *,
        transforms: bool = False,
        about: Mapping[str, Mapping[str, Any]] | None = None,
        indices: Sequence[str] = (),
    ) -> None:
        """Write what is watched, and how the charts belong together, to each TensorBoard.

        Args:
            markdown: the page.
            charts: tensor and statistic of each, as they will be logged.
            step: of the coming batch.
            transforms: whether there are transforms that report.
            about: what is known of the rows by name.
            indices: the row indices of the step views, as JSON.
        """
        for writer in self._boards():
            writer.write_start(markdown, charts, step, self._prefix, transforms=transforms, about=about, indices=indices)

    def write_capture(self, tensors: Mapping[str, tuple[Tensor, Sequence[int] | None]], folder: str, step: int) -> None:
        """Show tensors of a batch in each TensorBoard: feature maps as images, vectors [N, D] in the projector.

        One that fails is skipped from then on, with a warning.

        Args:
            tensors: [N, …] by the name of the module, with the samples of the data set that they are, if that is known.
            folder: what goes before the names.
            step: the x-axis of `self.log`.
        """
        for logger in list(self.loggers):
            try:
                self._show(logger, tensors, folder, step)
            except Exception as error:
                self.loggers.remove(logger)
                said = f"shows nothing more in TensorBoard after {type(error).__name__}: {error}"
                warnings.warn(f"the capture {said}; it continues, and so does the run", stacklevel=2)

    def _show(self, logger: Any, tensors: Mapping[str, tuple[Tensor, Sequence[int] | None]], folder: str, step: int) -> None:
        writer = self._writer(logger)
        if writer is None:
            return
        for name, (tensor, samples) in tensors.items():
            try:
                writer.write_tensor(f"{self._prefix}{folder}/{name}", tensor, step, samples)
            except HooksError as error:  # of this tensor
                warnings.warn(f"{name} is not shown in TensorBoard: {error}", stacklevel=3)

    @property
    def path(self) -> str:
        """The folder of the first TensorBoard, as it is typed; `path` where there is none."""
        return next((repr(str(logger.experiment.log_dir)) for logger in self.loggers if _is_board(logger)), "path")

    def _boards(self) -> list[RunWriter]:
        every = map(self._writer, self.loggers)
        return [writer for writer in every if writer is not None]

    def _writer(self, logger: Any) -> RunWriter | None:
        experiment = getattr(logger, "experiment", None)
        known = next((writer for writer in self._writers if writer.writes_to(experiment)), None)
        if known is None and is_tensorboard(experiment):
            known = RunWriter(experiment)
            self._writers.append(known)
        return known

    def _filled(self, layout: Layout, view: StepView) -> LogEntry:
        """What a step writes, with the histograms that are due; every run of another stage has all of them."""
        step, every = view.step, self._histogram_every
        if view.stage != "train" or every == 1:
            return layout.fill(view)
        if step < self._draws_from.get(layout, step):
            return layout.fill(view, draw=())
        due = [tag for tag in layout.drawn_tags if step - self._drawn_at.get(tag, -every) >= every]
        entry = layout.fill(view, draw=due)
        self._drawn_at.update(dict.fromkeys(entry.drawn_tags, step))  # not those of which nothing was measured
        self._draws_from[layout] = every + min((self._drawn_at.get(tag, -every) for tag in layout.drawn_tags), default=step)
        return entry

    def _layout(self, view: StepView) -> Layout:
        key = view.rows, view.stage, view.due
        if key not in self._layouts:
            levels = Levels() if self.limits is None else self.limits.levels(view.stage)
            self._layouts[key] = Layout(view.rows, view.due, view.stage, self._prefix, levels)
        return self._layouts[key]
