"""What a monitor reports about itself: warnings at the start of a run, and five lines in TensorBoard's Text tab."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lightning_hooks.callbacks._chosen_loggers import logger_writer
from lightning_hooks.callbacks._loggers import LoggerWriter
from lightning_hooks.callbacks._monitor_options import MonitorOptions
from lightning_hooks.callbacks._run import LightningRun
from lightning_hooks.callbacks._start_line import page_lines, start_line, watched_text
from lightning_hooks.callbacks._trainer import current_step, in_fit, is_quick, lightning_logger
from lightning_hooks.engine.inspecting.left_out import left_out_of
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.watching.about import about_rows
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.errors import listed
from lightning_hooks.plan.plan import Plan
from lightning_hooks.records.limits import CHARTS, MAX_CHARTS, MAX_SCALARS, Limits
from lightning_hooks.records.saved_index import SavedIndex
from lightning_hooks.records.step_view import STAGE_PREFIX
from lightning_hooks.rules.patterns import Target, select
from lightning_hooks.rules.prefix import name_of

if TYPE_CHECKING:
    from lightning_hooks.callbacks._base import HooksCallback
    from lightning_hooks.callbacks._lightning import Trainer

_LEFT_OUT: Final = 2
"""The most sentences on modules that rules leave out; `lightning-hooks match` says all of them."""


class MonitorLog:
    """Writes the steps of a monitor to its loggers during a run, and reports about the monitor itself.

    Attributes:
        writer: the consumer that writes the steps.
    """

    def __init__(self, monitor: HooksCallback, options: MonitorOptions, trainer: Trainer, run: LightningRun) -> None:
        self._monitor = monitor
        self._histogram_every = options.histogram_every_n_steps
        how: dict[str, Any] = {
            "histogram_every_n_steps": self._histogram_every,
            "failed": run.failed_loggers,
            "budget": run.disk,
        }
        self.writer: LoggerWriter = logger_writer(monitor, trainer, run, **how)
        self._structure = run.facts.of_model.structure
        self._plans: Mapping[str, Plan] = {}
        self._page_is_due = True

    def start(self, trainer: Trainer, plans: Mapping[str, Plan], limits: Limits, *, has_readers: bool) -> None:
        """Set the limits, log what a fit watches, and warn if rows are merged or nothing is written.

        Args:
            trainer: the Trainer of the run.
            plans: the plan of each stage.
            limits: the limits on scalars and histograms.
            has_readers: whether consumers read the steps, so that a monitor without loggers is of use.
        """
        monitor, self._plans = self._monitor, plans
        self.writer.limits = limits
        if "train" in plans and in_fit(trainer) and trainer.is_global_zero and not is_quick(trainer):
            line = start_line(type(monitor).__name__, plans["train"], self.writer.loggers)
            lightning_logger(trainer).info(line)
        if self.writer.loggers:
            if said := limits.warning():
                warnings.warn(f"{monitor._job.label}{said}", stacklevel=2)
        elif trainer.is_global_zero and monitor.loggers and not has_readers and not is_quick(trainer):
            given = ", ".join(type(logger).__name__ for logger in trainer.loggers) or "none"
            name = monitor._job.label or "StatsMonitor: "
            warnings.warn(
                f"{name}nothing is written: loggers={list(monitor.loggers)} chooses none of the "
                f"Trainer's loggers ({given}). Give the Trainer a TensorBoardLogger, or StatsMonitor(logdir='…') a folder; "
                "with StatsMonitor(loggers=[]) it is silent, for `latest`",
                stacklevel=2,
            )

    def write_page(self, trainer: Trainer, observer: Observer, share: Share, participants: Sequence[Participant]) -> None:
        """Write the lines about the run and the layout of the charts once, after the first step, when shapes are known.

        Args:
            trainer: the Trainer of the run.
            observer: the observer of the stage.
            share: of the monitor in the table of that observer.
            participants: the participants of the run, whose transforms and custom hooks are listed too.
        """
        if not self._page_is_due:
            return
        self._page_is_due = False
        if not self.writer.loggers:
            return
        transforms = any(getattr(participant, "transforms", ()) for participant in participants)
        left_out = left_out_of(trainer.lightning_module, (each.rule for each in share.plan.rules))
        watched = "; ".join([watched_text(share.plan), *map(str, left_out[:_LEFT_OUT])])
        page = "\n".join([*self._facts(trainer, share), f"- watched: {watched}", *page_lines(self.writer.loggers)])
        charts = [(STAGE_PREFIX[stage] + tensor, stat) for stage, plan in self._plans.items() for tensor, stat in plan.charts]
        try:
            about = about_rows(share.plan, share.shapes, share.uncalled_classes or ())
            prefix = self._monitor.prefix
            indices = [
                SavedIndex(plan.index, stage, name_of(prefix), observer.table.ranks, self._structure, prefix).to_json()
                for stage, plan in self._plans.items()
            ]
            self.writer.write_start(page, charts, current_step(trainer), transforms=transforms, about=about, indices=indices)
        except Exception as error:
            observer.fail(error, [share])

    def _facts(self, trainer: Trainer, share: Share) -> list[str]:
        """The settings, the merged rows, and the modules that were not called, as a list in Markdown."""
        names = ("precision", "accumulate_grad_batches", "gradient_clip_val", "log_every_n_steps", "world_size")
        lines = [f"- monitor: `{self._monitor!r}`", f"- run: {', '.join(f'{name} {getattr(trainer, name)}' for name in names)}"]
        limits = self.writer.limits
        merged = "" if limits is None else limits.details(self.writer.path, self._histogram_every)
        lines.append(f"- merged: {merged or 'nothing; every row has its own tags'}")
        if share.uncalled_classes is not None:
            by_kind: dict[str, list[str]] = {}
            for name, kind in share.uncalled_classes.items():
                by_kind.setdefault(kind, []).append(name)
            idle = "; ".join(f"{listed(names)} ({kind})" for kind, names in by_kind.items())
            lines.append(f"- not called in the first watched step: {idle or 'none'}")
        return lines


def limits_of(monitor: HooksCallback, options: MonitorOptions, plan: Plan, plans: Mapping[str, Plan]) -> Limits:
    """The limits on the scalars and histograms that a monitor writes in all its stages.

    Args:
        monitor: for its name.
        options: how it watches.
        plan: the whole plan of the monitor.
        plans: the plan of each stage.

    Raises:
        NoMatchError: a pattern of `scalars` matches no row.
    """
    pinned: list[Target[Any]] = []
    if options.scalars:
        targets = list({row.name: row.target for row in plan.rows}.values())
        strict = options.is_default or any(each.rule.strict for each in plan.rules)
        pinned = select(targets, options.scalars, where=f"{monitor._job.label}scalars", strict=strict, advice="")
    stages = {stage: each.index for stage, each in plans.items()}
    names = [target.name for target in pinned]
    if options.max_scalars is None and options.is_default:
        return Limits(stages, MAX_CHARTS, options.max_histograms, names, CHARTS)
    return Limits(stages, MAX_SCALARS if options.max_scalars is None else options.max_scalars, options.max_histograms, names)
