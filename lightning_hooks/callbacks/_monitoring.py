"""Monitoring: what a callback that watches does in a run: resolves rules, logs step views, and keeps the latest."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from lightning_hooks.callbacks._checks import Earlier, Setting, Written, refuse_common_tags, refuse_for_strategy
from lightning_hooks.callbacks._fit_report import leave_report, refuse_without_events, run_folder
from lightning_hooks.callbacks._max_overhead import OverheadLimit
from lightning_hooks.callbacks._monitor_log import MonitorLog, limits_of
from lightning_hooks.callbacks._run_context import TrainerContext, folder_of_run
from lightning_hooks.callbacks._trainer import is_alone
from lightning_hooks.engine.assembly import Assembled, Contribution
from lightning_hooks.engine.changing.checks import refuse_changed_sums
from lightning_hooks.engine.inspecting.left_out import LeftOut, left_out_of
from lightning_hooks.engine.inspecting.match_report import MatchLine, plan_report
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rank_check import check_ranks_agree
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.records.consumer import Latest, Publisher, StepConsumer
from lightning_hooks.records.limits import Limits, TablesOnly
from lightning_hooks.records.run_context import RunContext
from lightning_hooks.records.step_view import STAGE_PREFIX
from lightning_hooks.rules import Watch
from lightning_hooks.rules.prefix import name_of
from lightning_hooks.rules.schedule import EveryN

if TYPE_CHECKING:
    from lightning_hooks.callbacks._base import HooksCallback
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks._ours import Guest
    from lightning_hooks.callbacks._run import LightningRun


@dataclass(frozen=True)
class MonitorOptions:
    """How a callback watches; the fields are the options of `StatsMonitor`, already read.

    Args:
        is_default: whether the default rules are watched.
        only_tables: whether tables alone are written, without scalars and histograms.
        watches_loss_alone: whether the loss is watched also if no rule matches anything.
    """

    schedule: EveryN
    stages: Collection[str] = ("train",)
    scalars: Sequence[str] = ()
    max_scalars: int = 0
    max_histograms: int = 0
    histogram_every_n_steps: int = 1
    on_error: str = "raise"
    max_overhead: float | None = None
    consumers: Sequence[StepConsumer] = ()
    report: str | os.PathLike[str] | None = None
    is_default: bool = False
    only_tables: bool = False
    watches_loss_alone: bool = False


class Resolved(NamedTuple):
    """The rules of a monitor resolved against a model: the whole plan, and the plan of each stage that has rows."""

    plan: Plan
    plans: dict[str, Plan]


class Monitoring:
    """What a callback that watches does in a run.

    Args:
        owner: the callback, for its name, prefix and loggers, and for how it watches.

    Attributes:
        owner: the callback.
        context: what the consumers are given; None without consumers.
        log: writes the steps; None outside a run.
        shares: of the tables of the run, by stage.
    """

    def __init__(self, owner: HooksCallback) -> None:
        self.context: TrainerContext | None = None
        self.log: MonitorLog | None = None
        self.shares: dict[str, Share] = {}
        self.owner = owner
        self._current_run: LightningRun | None = None
        self._latest = Latest()
        options = owner._monitor_options()
        self._overhead_limit = OverheadLimit(options.max_overhead, options.schedule)

    @property
    def options(self) -> MonitorOptions:
        """How the callback watches."""
        return self.owner._monitor_options()

    def for_copy(self) -> Monitoring:
        """The same for a copy of the callback, which belongs to no run and sets `owner`; the last values stay."""
        copied = copy.copy(self)
        copied.log, copied.context, copied.shares, copied._current_run = None, None, {}, None
        copied.owner = None  # type: ignore[assignment]
        return copied

    def latest(self) -> dict[str, float]:
        """The statistics of the last step by tag."""
        return self._latest.values()

    def resolve(self, model: nn.Module, rules: Sequence[Watch] | None, name: str) -> Resolved:
        """Resolve rules against a model.

        Args:
            model: the root module.
            rules: watch rules; None for the default ones.
            name: of the list of rules in messages.

        Raises:
            RuleError: a rule is invalid in this model, or matches nothing.
        """
        options = self.options
        plan = resolve(
            model,
            rules,
            options.schedule,
            self.owner._label,
            with_loss="train" in options.stages,
            loss_alone=options.watches_loss_alone,
            draws_every=options.histogram_every_n_steps,
            name=name,
        )
        return Resolved(plan, self._plans_of(plan))

    def _plans_of(self, plan: Plan) -> dict[str, Plan]:
        """The plan of each stage. A stage for which no rule matches anything is skipped with a warning."""
        plans: dict[str, Plan] = {}
        for stage in [stage for stage in STAGE_PREFIX if stage in self.options.stages]:
            watched = plan if stage == "train" else plan.forward()
            if watched.rows or stage == "train":
                plans[stage] = watched
            # If no stage has rows, do not warn of this stage: another warning says that nothing is watched at all.
            elif plan.rows:
                warnings.warn(f"{self.owner._label}stages: no rule matches anything to watch in {stage!r}", stacklevel=2)
        return plans

    def check(self, resolved: Resolved, setting: Setting, earlier: Earlier) -> Earlier:
        """Check resolved rules without changing anything; as `OurCallback._check_resolved`."""
        plan, plans = resolved
        if not plan.rows:
            return earlier
        about = [(each.where, each.rule, [plan.rows[row].tensor for row in each.members]) for each in plan.rules]
        refuse_for_strategy(setting, about)
        if "train" in plans:
            refuse_changed_sums(plan, earlier.transforms)
        written = (*earlier.written, Written(name_of(self.owner.prefix), plans, self._limits(plan, plans), self.owner))
        refuse_common_tags(written)
        return earlier._replace(written=written)

    def _limits(self, plan: Plan, plans: dict[str, Plan]) -> Limits:
        return TablesOnly() if self.options.only_tables else limits_of(self.owner, self.options, plan, plans)

    def lines(self, resolved: Resolved) -> list[MatchLine]:
        """What the rules match, for a report."""
        plan, _ = resolved
        watched = plan if "train" in self.options.stages else plan.forward()
        return plan_report(watched, histogram_every_n_steps=self.options.histogram_every_n_steps)

    def left_out(self, model: nn.Module, resolved: Resolved) -> list[LeftOut]:
        """What the rules leave out although their patterns match it, for a report."""
        return left_out_of(model, (each.rule for each in resolved.plan.rules))

    def contribute(
        self, trainer: Trainer, run: LightningRun, resolved: Resolved, guests: Sequence[Guest]
    ) -> Contribution | None:
        """What the callback brings into a run; None if no rule matches anything.

        Args:
            trainer: the Trainer.
            run: the run that begins.
            resolved: the resolved rules.
            guests: the callbacks that read the steps beside the consumers.
        """
        owner, options = self.owner, self.options
        self._latest, self.shares, self._current_run = Latest(), {}, run
        plan: Plan = resolved.plan
        model: Any = run.model
        if not is_alone(trainer):
            check_ranks_agree(plan, model.device)
        if not plan.rows:
            return None
        written = next(each for each in run.earlier.written if each.owner is owner)
        self.log = MonitorLog(owner, options, trainer, run)
        if options.consumers or guests:
            folder = folder_of_run(trainer, self.log.writer.loggers, has_own=run.logdir_of(owner) is not None)
            self.context = TrainerContext(trainer, folder)
        consumers = [*options.consumers, *(guest.consumer(self.log.writer, self.context) for guest in guests)]
        publisher = Publisher([self._latest, self.log.writer, *consumers])
        if trainer.is_global_zero and run.is_fit and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            refuse_without_events(options.report, self.log.writer.loggers)
        self.log.start(trainer, written.plans, written.limits, has_readers=bool(consumers))
        # The run closes this publisher when it ends. Set it only here, after all checks have passed.
        owner._publisher = publisher
        publisher.start(plan.index, self.context or RunContext())
        leads = {stage: run.earlier.leads(written, stage) for stage in written.plans}
        return Contribution(
            type(owner).__name__, owner._label, written.plans, on_error=options.on_error, publisher=publisher, leads=leads
        )

    def assembled(self, run: LightningRun, made: Assembled) -> None:
        """Called when the run is assembled: continue from the checkpoint that was loaded."""
        self.shares = made.shares
        trained = self._trained
        if trained is not None:
            saved = self.owner._saving.take()
            damaged = self._producer("train").views[trained.part.number].load_state_dict(saved)
            damaged += self._overhead_limit.start(trained, run.meter.clock, saved)
            self.owner._warn_of_damage(damaged)

    @property
    def _trained(self) -> Share | None:
        return self.shares.get("train")

    def _producer(self, stage: str) -> Producer:
        assert self._current_run is not None
        return self._current_run.producers[stage]

    def state_dict(self) -> dict[str, Any]:
        """The averages of the noise scale, and the intervals that `max_overhead` has widened."""
        trained = self._trained
        if trained is None:
            return {}
        views = self._producer("train").views[trained.part.number]
        return {**views.state_dict(), **self._overhead_limit.state_dict(trained)}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Continue the fit under way. Returns a sentence about each damaged entry, whose state starts again."""
        trained = self._trained
        if trained is None:
            return []
        damaged = self._producer("train").views[trained.part.number].load_state_dict(state)
        return [*damaged, *self._overhead_limit.load_state_dict(trained, state)]

    @property
    def has_requests(self) -> bool:
        """Whether consumers have requests that are not fulfilled yet."""
        return self.context is not None and self.context.has_requests

    def fulfil(self, trainer: Trainer) -> None:
        """Do what consumers have requested. Call it only where all ranks have published the same views."""
        if self.context is not None and self.context.has_requests:
            if (steps := self.context.take_focus()) and self._trained is not None:
                self._trained.focus(steps)
            self.context.fulfil(trainer)

    def end_step(self, trainer: Trainer) -> None:
        """Called when a training step has ended: warn of wider intervals, and write the page once."""
        trained = self._trained
        if trained is None:
            return
        self._overhead_limit.warn(trained)
        if trained.part.number in self._producer("train").observer.due_shares:
            self.write_page(trainer, "train")

    def write_page(self, trainer: Trainer, stage: str) -> None:
        """Write the page about the run once, when a step of a stage was measured and shapes are known, or the run ends."""
        share = self.shares.get(stage)
        if self.log is not None and share is not None and self._current_run is not None:
            self.log.write_page(trainer, self._producer(stage).observer, share, self._current_run.participants)

    def after_run(self, trainer: Trainer, stage: str) -> None:
        """Called when a run of a stage other than `train` has ended."""
        # If the monitor also watches training, a training step writes the page, with more rows.
        if self._trained is None:
            self.write_page(trainer, stage)
        self.fulfil(trainer)

    def close(self, detach: Any, error: BaseException | None) -> None:
        """Leave the run, and write the report of a fit that ended normally.

        Args:
            detach: makes the callback leave the run.
            error: what ended the run; None after a normal end.
        """
        run, folder = self._current_run, None
        if error is None and self.options.report is not None and self.log is not None and run is not None and run.is_fit:
            folder = run_folder(self.log.writer.loggers)
        try:
            detach(error)
        finally:
            self.log, self.context, self.shares, self._current_run = None, None, {}, None
        if folder is not None and run is not None and run.trainer is not None:
            leave_report(folder, Path(str(self.options.report)).expanduser().absolute(), run.trainer.loggers)
