"""Writes steps to loggers: events to a TensorBoard, dictionaries to other loggers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from torch import Tensor

from lightning_hooks.errors import HooksError
from lightning_hooks.hooks import for_each
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.records.disk_budget import DiskBudget
from lightning_hooks.records.entry import LogEntry
from lightning_hooks.records.facts import StepFacts
from lightning_hooks.records.histogram_pace import HistogramPace
from lightning_hooks.records.layout import EntryLayout
from lightning_hooks.records.levels import Levels
from lightning_hooks.records.limits import Limits
from lightning_hooks.records.saved_facts import changes
from lightning_hooks.records.step_view import StepView
from lightning_hooks.records.windows import Windows
from lightning_hooks.tensorboard import StepEventWriter, is_tensorboard

_FEW: Final = 8  # views


def is_board(logger: Any) -> bool:
    """Whether a logger is a TensorBoard."""
    return is_tensorboard(getattr(logger, "experiment", None))  # A logger may have no `experiment`.


def board_folder(loggers: Iterable[Any]) -> str | None:
    """The folder of the first TensorBoard among loggers, which opens its event file; None if there is none."""
    return next((str(logger.experiment.log_dir) for logger in loggers if is_board(logger)), None)


class LoggerWriter(StepConsumer):
    """Writes each watched step to every TensorBoard, and to other loggers the steps at which Lightning logs.

    Args:
        loggers: objects with `log_metrics`, or with an `experiment` that is a `SummaryWriter`.
        logs_at: returns whether Lightning logs at a training step.
        prefix: the prefix of every tag.
        histogram_every_n_steps: the least number of steps between two writes of a histogram.
        failed: takes the loggers that raise, with their errors.
        has_layers: as of the function of this name, for this callback; default: always.
        budget: of the run on disk; None for no limit.

    Attributes:
        limits: the limits on scalars and histograms; None for none.
    """

    def __init__(
        self,
        loggers: Sequence[Any],
        logs_at: Callable[[int], bool],
        prefix: str = "",
        histogram_every_n_steps: int = 1,
        failed: list[tuple[Any, Exception]] | None = None,
        has_layers: Callable[[Any], bool] | None = None,
        budget: DiskBudget | None = None,
    ) -> None:
        self.loggers = list(loggers)
        self.limits: Limits | None = None
        self._failed = [] if failed is None else failed
        self._logs_at = logs_at
        self._has_layers = has_layers or (lambda logger: True)
        self._prefix = prefix
        self._pace = HistogramPace(histogram_every_n_steps)
        # For the boards that keep the histograms of every step while tables are written for windows.
        self._pace_of_steps = HistogramPace(histogram_every_n_steps)
        self._budget = budget or DiskBudget(None)
        self._windows = Windows(self._budget)
        self._writers: list[StepEventWriter] = []
        self._layouts: dict[tuple[RowIndex, str, Due, bool], EntryLayout] = {}
        self._stored_facts: StepFacts | None = None  # the facts in the event files, so that only changes are written
        # For each class of a logger other than TensorBoard, whether no training step was written to it: close() warns then.
        self._missed: dict[str, bool] = {}

    def consume(self, view: StepView) -> None:
        """Write a step to every logger, also if one of them raises; then raise the first error."""
        logs = view.stage != "train" or self._logs_at(view.step)
        boards: list[tuple[Any, StepEventWriter]] = []
        others: list[Any] = []
        for logger in self.loggers:
            writer = self._writer(logger)
            if writer is not None:
                boards.append((logger, writer))
            elif logs:
                others.append(logger)
            if writer is None and view.stage == "train":
                name = type(logger).__name__
                self._missed[name] = self._missed.get(name, True) and not logs
        if not boards and not others:
            return
        views = self._windows.take(view) if boards and view.stage == "train" else [view]
        is_single = views[-1:] == [view]
        # The views that were held back come first: facts are written as changes since the view before.
        writes = self._writes_of_merged(views[:-1] if is_single else views, boards)
        entry: LogEntry | None = None
        if is_single:
            entry = self._entry(view)
            writes += [partial(self._write_to_board, *board, entry) for board in boards]
        else:
            writes += self._writes_of_step(view, boards)
            entry = self._layout(view).fill(view, histograms=(), rows=()) if others else None
        if entry is not None:
            writes += [partial(self._log, logger, entry) for logger in others]
        for_each(lambda write: write(), writes)

    def _entry(self, view: StepView) -> LogEntry:
        """The entry of a view with its histograms that are due, and with the facts that have changed."""
        # When little of the budget is left, one step with all histograms would take what many windows need.
        if self._budget.room(_FEW) < _FEW:
            entry = self._layout(view).fill(view, histograms=(), rows=())
        else:
            entry = self._pace.fill(self._layout(view), view, self._windows.times)
        if view.facts is not None and view.facts is not self._stored_facts:
            entry = replace(entry, facts=changes(self._stored_facts, view.facts))
            self._stored_facts = view.facts
        return replace(entry, monitor=self._prefix) if entry.facts or entry.window else entry

    def _writes_of_step(self, view: StepView, boards: Sequence[tuple[Any, StepEventWriter]]) -> list[Callable[[], None]]:
        """What writes the scalars and histograms of a step whose table goes into a window, to the boards that keep them."""
        asked = [board for board in boards if self._has_layers(board[0])]
        if not asked:
            return []
        entry = self._pace_of_steps.fill(self._layout(view), view).without_table()
        return [partial(self._write_to_board, *board, entry, counts=False) for board in asked]

    def _writes_of_merged(
        self, views: Iterable[StepView], boards: Sequence[tuple[Any, StepEventWriter]]
    ) -> list[Callable[[], None]]:
        """What writes views that were held back. A board that keeps the scalars of every step has those already."""
        writes: list[Callable[[], None]] = []
        for view in views:
            entry = self._entry(view)
            for board in boards:
                of_board = entry.without_scalars() if self._has_layers(board[0]) else entry
                writes.append(partial(self._write_to_board, *board, of_board))
        return writes

    def _write_to_board(self, logger: Any, writer: StepEventWriter, entry: LogEntry, *, counts: bool = True) -> None:
        """Write an entry; `counts` says whether it counts for the budget."""
        with self._noting_failure(logger):
            size = writer.write(entry)
        if counts:
            self._budget.wrote(size)

    def _log(self, logger: Any, entry: LogEntry) -> None:
        with self._noting_failure(logger):
            logger.log_metrics(entry.scalars if self._has_layers(logger) else entry.global_scalars, step=entry.step)

    @contextmanager
    def _noting_failure(self, logger: Any) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed.append((logger, error))
            raise

    def write_rest(self, *, single: bool = False) -> None:
        """Write the steps that are held back for a window; then raise the first error.

        Args:
            single: whether to write the last of them singly.
        """
        self._write_held(self._windows.rest(single=single))

    def _write_held(self, views: Sequence[StepView]) -> None:
        # Do not ask for the boards without need: one whose file is closed would open another.
        if not views:
            return
        boards = [(logger, writer) for logger in self.loggers if (writer := self._writer(logger)) is not None]
        for_each(lambda write: write(), self._writes_of_merged(views, boards))

    def note_finding(self) -> None:
        """Let the monitors of the run write the steps around the last one singly."""
        self._budget.note_finding()

    def before_checkpoint(self) -> None:
        """Write the steps that are held back, so that a resume from the checkpoint lacks none of them."""
        self._write_held(self._windows.before_checkpoint())

    def write_text(self, name: str, text: str, step: int) -> None:
        """Write Markdown to the Text tab of each TensorBoard.

        Args:
            name: of the text; the prefix goes before it.
            text: as Markdown.
            step: the x-axis of `self.log`.
        """
        self._on_boards(lambda writer: writer.write_text(f"{self._prefix}{name}", text, step))

    def write_findings(self, summary: Mapping[str, Any], step: int) -> None:
        """Write what health rules have found to each TensorBoard."""
        self._on_boards(lambda writer: writer.write_findings(summary, step, self._prefix))

    def skip_failed(self, failed: Sequence[tuple[Any, Exception]]) -> list[Exception]:
        """Skip loggers that raised when a monitor wrote to them: on a full disk, leave the rest to the module's own logs.

        Args:
            failed: the loggers with their errors.

        Returns:
            The errors of the loggers that are skipped from now on.
        """
        errors = {id(logger): error for logger, error in failed}
        lost = [errors[id(logger)] for logger in self.loggers if id(logger) in errors]
        self.loggers = [logger for logger in self.loggers if id(logger) not in errors]
        return lost

    def close(self, error: BaseException | None) -> None:
        """Write what is held back, and warn of loggers that got nothing, because Lightning logged at no watched step."""
        self.write_rest(single=error is not None)
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
        """Write the page about the run, the layout of its charts and its row indices to each TensorBoard.

        Args:
            markdown: the page.
            charts: the tensor and the statistic of each chart, as they will be logged.
            step: the step of the coming batch.
            transforms: whether there are transforms that report.
            about: by name of a row, facts such as its type and shape.
            indices: the row indices of the step views, as JSON.
        """
        options: dict[str, Any] = {"transforms": transforms, "about": about, "indices": indices}
        self._on_boards(lambda writer: writer.write_start(markdown, charts, step, self._prefix, **options))

    def write_capture(self, tensors: Mapping[str, tuple[Tensor, Sequence[int] | None]], folder: str, step: int) -> None:
        """Show tensors of a batch in each TensorBoard: feature maps as images, vectors [N, D] in the projector.

        A TensorBoard that raises is skipped from then on, with a warning.

        Args:
            tensors: tensors [N, …] by the name of the module, each with the indices of its samples in the data set, or None.
            folder: the first part of the tags, before the names.
            step: the x-axis of `self.log`.
        """
        for logger in list(self.loggers):
            try:
                self._show(logger, tensors, folder, step)
            except Exception as error:
                self.loggers.remove(logger)
                warnings.warn(
                    f"the capture shows nothing more in TensorBoard after {type(error).__name__}: {error}; it continues, and "
                    "so does the run",
                    stacklevel=2,
                )

    def _show(self, logger: Any, tensors: Mapping[str, tuple[Tensor, Sequence[int] | None]], folder: str, step: int) -> None:
        writer = self._writer(logger)
        if writer is None:
            return
        for name, (tensor, samples) in tensors.items():
            try:
                writer.write_tensor(f"{self._prefix}{folder}/{name}", tensor, step, samples)
            # TensorBoard cannot show this tensor; continue with the next one.
            except HooksError as error:
                warnings.warn(f"{name} is not shown in TensorBoard: {error}", stacklevel=3)

    @property
    def path(self) -> str:
        """The folder of the first TensorBoard, as a Python literal; the word `path` if there is no TensorBoard."""
        folder = board_folder(self.loggers)
        return "path" if folder is None else repr(folder)

    def _on_boards(self, write: Callable[[StepEventWriter], int]) -> None:
        """Write to each TensorBoard but those that have failed, of which a warning has told; then raise the first error.

        Args:
            write: returns the bytes that it has written, which count for the budget.
        """
        lost = [logger for logger, _ in self._failed]

        def attempt(logger: Any) -> None:
            if any(logger is each for each in lost):
                return
            try:
                if (writer := self._writer(logger)) is not None:
                    self._budget.wrote(write(writer), is_view=False)
            except Exception as error:
                self._failed.append((logger, error))
                raise

        for_each(attempt, self.loggers)

    def _writer(self, logger: Any) -> StepEventWriter | None:
        """The writer of a logger that is a TensorBoard; None for other loggers."""
        experiment = getattr(logger, "experiment", None)
        run_writer = next((writer for writer in self._writers if writer.writes_to(experiment)), None)
        if run_writer is None and is_tensorboard(experiment):
            run_writer = StepEventWriter(experiment)
            self._writers.append(run_writer)
        return run_writer

    def _layout(self, view: StepView) -> EntryLayout:
        key = view.rows, view.stage, view.due, view.window is not None
        if key not in self._layouts:
            levels = Levels() if self.limits is None else self.limits.levels(view.stage)
            merges = view.window is not None
            self._layouts[key] = EntryLayout(view.rows, view.due, view.stage, self._prefix, levels, merges=merges)
        return self._layouts[key]
