"""Writes the steps of a monitor in a plain loop into an event file, after the page about its rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from lightning_hooks.callbacks._loggers import LoggerWriter
from lightning_hooks.callbacks._start_line import page_lines, watched_text
from lightning_hooks.engine.watching.about import about_rows
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.records.limits import Limits
from lightning_hooks.records.saved_index import SavedIndex
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules.prefix import name_of
from lightning_hooks.tensorboard.own_board import OwnBoard


def _always(step: int) -> bool:
    return True


def board_writer(board: OwnBoard, prefix: str, histogram_every_n_steps: int = 1) -> LoggerWriter:
    """The consumer that writes every step into an event file.

    Args:
        board: the event file.
        prefix: the prefix of every tag.
        histogram_every_n_steps: the least number of steps between two writes of a histogram.
    """
    return LoggerWriter([board], _always, prefix, histogram_every_n_steps)


class LoopWriter(LoggerWriter):
    """Writes the steps of a monitor.

    Args:
        board: the event file.
        prefix: the prefix of every tag.
        limits: the limits on scalars and histograms.
        histogram_every_n_steps: the least number of steps between two histograms of a row.
        share: returns the share of the monitor, which knows the shapes of modules' tensors after the first step.
        how: further arguments of `LoggerWriter`.
    """

    def __init__(
        self, board: OwnBoard, prefix: str, limits: Limits, histogram_every_n_steps: int, share: Callable[[], Share], **how: Any
    ) -> None:
        super().__init__([board], _always, prefix, histogram_every_n_steps, **how)
        self.limits = limits
        self._tag_prefix, self._histogram_every, self._share = prefix, histogram_every_n_steps, share
        self._page_is_due = True

    @override
    def consume(self, view: StepView) -> None:
        if not len(view.rows.names):
            return
        if self._page_is_due:
            self._page_is_due = False
            self._write_page(view)
        super().consume(view)

    def _write_page(self, view: StepView) -> None:
        share = self._share()
        plan, shapes, prefix = share.plan, share.shapes, self._tag_prefix
        index = SavedIndex(plan.index, "train", name_of(prefix), view.ranks, view.structure, prefix).to_json()
        page = "\n".join([f"- watched: {watched_text(plan)}", *page_lines(self.loggers)])
        about = about_rows(plan, shapes, share.uncalled_classes or ())
        self.write_start(page, plan.charts, view.step, about=about, indices=[index])
