"""Writes the steps of a plain loop into an event file of this package, which the page and TensorBoard show."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from typing_extensions import override

from lightning_hooks.engine.inspecting.match_report import Match, plan_report
from lightning_hooks.engine.watching.about import about_rows
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.records.facts import StepFacts
from lightning_hooks.records.histogram_pace import HistogramPace
from lightning_hooks.records.layout import EntryLayout
from lightning_hooks.records.limits import HISTOGRAM_EVERY_N_STEPS, MAX_HISTOGRAMS, MAX_SCALARS, Limits
from lightning_hooks.records.run_context import RunContext
from lightning_hooks.records.saved_facts import changes
from lightning_hooks.records.saved_index import SavedIndex
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules.fields import check_local
from lightning_hooks.rules.prefix import ROOT, name_of
from lightning_hooks.stats.processes import of_first_rank, rank
from lightning_hooks.tensorboard import StepEventWriter
from lightning_hooks.tensorboard.own_board import OwnBoard, checked_logdir


class LoopBoard(StepConsumer):
    """Writes each step as one event, in a new folder `run_<n>`; ranks other than 0 write nothing.

    Args:
        logdir: the folder that holds a folder for each run.
        producer: returns the producer of the steps, which knows the shapes of modules' tensors after the first step.

    Attributes:
        folder: the folder of the run, the same on every rank.

    Raises:
        RuleError: the folder cannot be written to.
    """

    def __init__(self, logdir: str | os.PathLike[str], producer: Callable[[], Producer | None]) -> None:
        check_local("logdir", logdir, "give a local one")
        self._producer = producer
        self._board = OwnBoard(checked_logdir(logdir), {}, logging.getLogger("lightning_hooks"))
        self.folder = cast(Path, of_first_rank(self._board.folder if rank() == 0 else None))
        self._writer: StepEventWriter | None = None
        self._limits: Limits | None = None
        self._layouts: dict[Due, EntryLayout] = {}
        self._pace = HistogramPace(HISTOGRAM_EVERY_N_STEPS)
        self._stored_facts: StepFacts | None = None  # those that the event file has

    @override
    def start(self, rows: RowIndex, run: RunContext) -> None:
        self._limits = Limits({"train": rows}, MAX_SCALARS, MAX_HISTOGRAMS, ())

    @override
    def consume(self, view: StepView) -> None:
        if rank() != 0 or self._limits is None or not len(view.rows.names):
            return
        if self._writer is None:
            self._writer = StepEventWriter(self._board.experiment)
            self._write_start(self._writer, self._limits, view)
        layout = self._layouts.get(view.due)
        if layout is None:
            levels = self._limits.levels("train")
            layout = self._layouts[view.due] = EntryLayout(view.rows, view.due, view.stage, ROOT, levels)
        entry = self._pace.fill(layout, view)
        if view.facts is not None and view.facts is not self._stored_facts:
            entry = replace(entry, facts=changes(self._stored_facts, view.facts), monitor=ROOT)
            self._stored_facts = view.facts
        self._writer.write(entry)

    @override
    def close(self, error: BaseException | None) -> None:
        self._board.remove()

    def _write_start(self, writer: StepEventWriter, limits: Limits, view: StepView) -> None:
        producer = self._producer()
        assert producer is not None  # `view` comes from this producer
        share = producer.observer.shares[0]
        plan, shapes, uncalled = share.plan, share.shapes, share.uncalled
        index = SavedIndex(plan.index, "train", name_of(ROOT), view.ranks, view.structure, ROOT).to_json()
        page = Match(plan_report(plan, shapes, limits, HISTOGRAM_EVERY_N_STEPS)).markdown()
        about = about_rows(plan, shapes, uncalled or ())
        writer.write_start(page, plan.charts, view.step, ROOT, about=about, indices=[index])
