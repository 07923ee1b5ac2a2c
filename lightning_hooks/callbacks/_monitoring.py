"""Monitoring: the job of a callback that watches: resolves rules, logs step views, and keeps the latest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from torch import nn
from typing_extensions import override

from lightning_hooks.callbacks._checks import Earlier, Setting, refuse_for_strategy, refuse_setting
from lightning_hooks.callbacks._disk import limit_of
from lightning_hooks.callbacks._driver import flush
from lightning_hooks.callbacks._fit_report import FitReport, report_of_fit
from lightning_hooks.callbacks._job import Guest, Job, Owner
from lightning_hooks.callbacks._loop_monitor import LoopGuest, MonitorPart
from lightning_hooks.callbacks._monitor_log import MonitorLog, limits_of
from lightning_hooks.callbacks._monitor_options import MonitorOptions
from lightning_hooks.callbacks._monitor_plans import Resolved
from lightning_hooks.callbacks._monitor_run import MonitorRun, check_written
from lightning_hooks.callbacks._monitor_state import MonitorState
from lightning_hooks.callbacks._ours import our_callbacks
from lightning_hooks.callbacks._run_context import TrainerContext, folder_of_run
from lightning_hooks.callbacks._trainer import is_alone, is_quick
from lightning_hooks.codec import decode, encode
from lightning_hooks.engine.assembly import Assembled, Contribution
from lightning_hooks.engine.inspecting.left_out import LeftOut, left_out_of
from lightning_hooks.engine.inspecting.match_report import MatchLine, plan_report
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.plan.rank_check import check_ranks_agree
from lightning_hooks.records.consumer import Latest
from lightning_hooks.records.disk_budget import DiskState
from lightning_hooks.records.run_context import RunContext
from lightning_hooks.rules import Watch

if TYPE_CHECKING:
    from lightning_hooks.callbacks._base import HooksCallback
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks._run import LightningRun


class Monitoring(Job[Owner, Resolved]):
    """The job of a callback that watches.

    A subclass defines `options` and `resolve`.

    Attributes:
        context: what the consumers are given; None without consumers.
        log: writes the steps; None outside a run.
        monitor: what the callback has in the run of a Trainer; None outside of one, and if no rule matches anything.
    """

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner)
        self.context: TrainerContext | None = None
        self.log: MonitorLog | None = None
        self.monitor: MonitorRun | None = None
        self._latest = Latest()
        self._saved: MonitorState | None = None  # what the checkpoint of the run keeps, once it is read
        self._report: FitReport | None = None  # what the fit under way leaves

    @property
    def options(self) -> MonitorOptions:
        """How the callback watches."""
        raise NotImplementedError

    @override
    def for_copy(self) -> Self:
        copied = super().for_copy()
        copied.log, copied.context, copied.monitor, copied._report, copied._saved = None, None, None, None, None
        return copied

    def latest(self) -> dict[str, float]:
        """The statistics of the last step by tag; waits for tables that are still being copied from a device."""
        flush(self.run)
        if (part := self.owner._loop_part) is not None:
            part.flush()
        return self._latest.values()

    def part_in_loop(self, run: LoopRun, watch: Sequence[Watch] | None, guests: Sequence[LoopGuest]) -> MonitorPart:
        """What the callback does in a block of `instrument`; arguments and errors as of `MonitorPart`."""
        part = MonitorPart(run, self.owner, self.options, watch, guests, self.label)
        self._latest = part.latest
        return part

    @override
    def refuse_beside(self, callbacks: Sequence[HooksCallback]) -> None:
        limit_of(callbacks)

    @override
    def refuse_setting(self, setting: Setting) -> None:
        refuse_setting(setting, self.owner.stages)

    @override
    def check(self, resolved: Resolved, setting: Setting, earlier: Earlier) -> Earlier:
        plan = resolved.plan
        if not plan.rows:
            return earlier
        about = [(each.where, each.rule, [plan.rows[row].tensor for row in each.members]) for each in plan.rules]
        refuse_for_strategy(setting, about)
        written = check_written(self.owner, self.options, resolved, earlier)
        return earlier._replace(written=(*earlier.written, written))

    @override
    def lines(self, resolved: Resolved) -> list[MatchLine]:
        plan, plans = resolved
        options = self.options
        stage = "train" if "train" in options.stages else next(iter(plans), "train")
        limits = None if options.only_tables or not plan.rows else limits_of(self.owner, options, plan, plans)
        watched = plan if stage == "train" else plan.forward()
        return plan_report(watched, None, limits, options.histogram_every_n_steps, stage)

    @override
    def left_out(self, model: nn.Module, resolved: Resolved) -> list[LeftOut]:
        return left_out_of(model, (each.rule for each in resolved.plan.rules))

    def guests(self, trainer: Trainer | None) -> list[Guest]:
        """What reads the steps beside the consumers: jobs of other callbacks of the Trainer."""
        asked = [] if trainer is None else (each._job.guest_of(self, trainer) for each in our_callbacks(trainer))
        return [guest for guest in asked if guest is not None]

    @override
    def contribute(self, trainer: Trainer, run: LightningRun, resolved: Resolved) -> Contribution | None:
        owner, options = self.owner, self.options
        self._latest, self.monitor, self.run, self._report = Latest(), None, run, None
        plan = resolved.plan
        if not is_alone(trainer):
            check_ranks_agree(plan, run.model.device)
        if not plan.rows:
            return None
        written = next(each for each in run.earlier.written if each.owner is owner)
        self.monitor = monitor = MonitorRun(written, options, self.label)
        self._latest = monitor.latest
        self.log = MonitorLog(owner, options, trainer, run)
        guests = self.guests(trainer)
        if options.consumers or guests:
            folder = folder_of_run(trainer, self.log.writer.loggers, has_own=run.logdir_of(owner) is not None)
            self.context = TrainerContext(trainer, folder)
        consumers = [*options.consumers, *(guest.consumer(self.log.writer, self.context) for guest in guests)]
        contribution = monitor.contribute([self.log.writer, *consumers], run.earlier)
        if trainer.is_global_zero and run.is_fit and not is_quick(trainer):
            # Of several monitors only the first leaves a report that nobody has asked for.
            report = options.report if run.earlier.written[0].owner is owner else options.report or False
            self._report = report_of_fit(report, self.log.writer.loggers, trainer.loggers)
        self.log.start(trainer, written.plans, written.limits, has_readers=bool(consumers))
        # Set the publisher, which is closed with the run, only here, after all checks have passed.
        self.publisher = monitor.publisher
        self.publisher.start(plan.index, self.context or RunContext())
        return contribution

    @override
    def assembled(self, run: LightningRun, made: Assembled) -> None:
        if self.monitor is not None:
            # Continue the averages of the noise scale and the longer intervals of the checkpoint; without one, begin anew.
            saved = self.take_saved() if "train" in made.shares else None
            self.monitor.assembled(made, run.producers, run.meter.clock, saved)
            if saved is not None:
                run.disk.continue_from(saved.disk)

    @override
    def state(self) -> dict[str, Any]:
        """The averages of the noise scale, the intervals that `max_overhead` has widened, and what the run has written."""
        flush(self.run)
        if self.monitor is None:
            return {}
        written = DiskState() if self.run is None else self.run.disk.state()
        return self.monitor.state() | ({"disk": encode(written)} if written != DiskState() else {})

    @override
    def before_checkpoint(self) -> None:
        """Write the steps that are held back for a window, after all finished steps."""
        flush(self.run)
        if self.log is not None:
            self._write(self.log.writer.before_checkpoint)

    @override
    def before_leaving(self, error: BaseException | None) -> None:
        """Write the steps that are held back, while event files are open."""
        if self.log is not None:
            self._write(partial(self.log.writer.write_rest, single=error is not None))

    def _write(self, write: Callable[[], None]) -> None:
        """Write to the loggers outside of a step; an error goes through `on_error`."""
        trained = None if self.monitor is None else self.monitor.trained
        if trained is None or self.run is None:
            return
        try:
            write()
        except Exception as error:
            self.run.producers["train"].observer.fail(error, [trained])

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        flush(self.run)  # Publish finished steps first: they belong to the state before loading.
        self.proceed(decode(MonitorState, state, "state"))

    def proceed(self, saved: MonitorState) -> None:
        """Continue the fit under way from a checkpoint."""
        if self.monitor is not None:
            self.monitor.proceed(saved)
        if self.run is not None:
            self.run.disk.continue_from(saved.disk)

    def take_saved(self) -> MonitorState:
        """What the checkpoint of the fit that begins keeps, read at the first call; empty without one, or if it is damaged."""
        if self._saved is None:
            self._saved = MonitorState()
            with self.starting_again():
                self._saved = decode(MonitorState, self.owner._saving.take(), "state")
        return self._saved

    @property
    @override
    def has_requests(self) -> bool:
        return self.context is not None and self.context.has_requests

    def fulfil(self, trainer: Trainer) -> None:
        """Do what consumers have requested. Call it only where all ranks have published the same views."""
        if self.context is not None and self.context.has_requests:
            if (steps := self.context.take_focus()) and self.monitor is not None:
                self.monitor.focus(steps)
            self.context.fulfil(trainer)

    @override
    def end_batch(self, trainer: Trainer, stage: str) -> None:
        if stage == "train" and self.run is not None and self.run.has_ended_step:
            self.fulfil(trainer)

    @override
    def end_step(self, trainer: Trainer, step: int) -> None:
        if self.monitor is None:
            return
        self.monitor.end_step()
        # Write the page when a step was measured: shapes are known then.
        if self.monitor.is_due:
            self._write_page(trainer, "train")

    def _write_page(self, trainer: Trainer, stage: str) -> None:
        """Write the page about the run, if it is not written yet."""
        share = None if self.monitor is None else self.monitor.shares.get(stage)
        if self.log is not None and share is not None and self.run is not None:
            self.log.write_page(trainer, self.run.producers[stage].observer, share, self.run.participants)

    @override
    def end_epoch(self, trainer: Trainer) -> None:
        # The next batch may begin much later, so that requests are not left until then.
        self.fulfil(trainer)

    @override
    def end_training(self, trainer: Trainer) -> None:
        self._write_page(trainer, "train")
        self.fulfil(trainer)

    @override
    def end_stage(self, trainer: Trainer, stage: str) -> None:
        # If the monitor also watches training, a training step writes the page, with more rows.
        if self.monitor is None or self.monitor.trained is None:
            self._write_page(trainer, stage)
        self.fulfil(trainer)

    @override
    def close(self, error: BaseException | None) -> None:
        report = self._report
        try:
            super().close(error)
        finally:
            self.log, self.context, self.monitor, self._report, self._saved = None, None, None, None, None
        if error is None and report is not None:
            report.leave()
