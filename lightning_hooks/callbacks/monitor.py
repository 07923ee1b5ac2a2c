"""`StatsMonitor`: log statistics of the tensors of every layer and parameter, at every step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn
from typing_extensions import override

from lightning_hooks.callbacks._checks import (
    Earlier,
    Setting,
    Written,
    check_options,
    options_repr,
    refuse_common_tags,
    refuse_for_strategy,
    refuse_idle_stages,
    refuse_setting,
)
from lightning_hooks.callbacks._fit_report import leave_report, refuse_without_events, run_folder
from lightning_hooks.callbacks._loggers import as_loggers
from lightning_hooks.callbacks._max_overhead import OverheadLimit
from lightning_hooks.callbacks._monitor_log import MonitorLog, limits_of
from lightning_hooks.callbacks._ours import Guest, our_callbacks
from lightning_hooks.callbacks._producers import plans_of, producers_of
from lightning_hooks.callbacks._run import LightningRun
from lightning_hooks.callbacks._run_context import TrainerContext, folder_of_run
from lightning_hooks.callbacks._trainer import is_alone
from lightning_hooks.callbacks._watching import WatchingCallback
from lightning_hooks.engine.changing.checks import refuse_changed_sums
from lightning_hooks.engine.inspecting.left_out import LeftOut, left_out_of
from lightning_hooks.engine.inspecting.match_report import MatchLine, plan_report
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.errors import RuleError
from lightning_hooks.plan.defaults import DEFAULT_WATCH
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rank_check import check_ranks_agree
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.records.consumer import Latest, Publisher, StepConsumer, as_consumers
from lightning_hooks.records.limits import HISTOGRAM_EVERY_N_STEPS, MAX_HISTOGRAMS, MAX_SCALARS, Limits
from lightning_hooks.records.run_context import RunContext
from lightning_hooks.rules import Watch
from lightning_hooks.rules.fields import as_count, as_patterns, as_stages, check_local, check_path
from lightning_hooks.rules.prefix import ROOT, name_of
from lightning_hooks.rules.reading import as_rules
from lightning_hooks.rules.schedule import EveryN, every_n

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer


class Resolved(NamedTuple):
    """The rules of a monitor resolved against a model: the whole plan, and the plan of each stage that has rows."""

    plan: Plan
    plans: dict[str, Plan]


class StatsMonitor(WatchingCallback):
    """Watch named modules and parameters, and log statistics of their tensors.

    Without arguments: `output` and `output_grad` of every layer (a module that has no children or owns parameters), `param`,
    `grad` and `update` of every trainable parameter, with the default statistics, at every step.

    Args:
        watch: rules, or mappings with the fields of a rule; default as above.
        every_n_steps: the interval in steps, counted as in Lightning ((step + 1) % n == 0); or a list of steps; or a mapping
            with `first`, `every`, `last`. A rule's own value overrides it. Default 1.
        stages: any of `train`, `validate`, `test`, `predict`; default `train`. Outside training `input` and `output`
            are watched in every batch and merged exactly into one row per run, with tags `val_…`, `test_…`, `predict_…`;
            the sanity check before training is skipped.
        scalars: patterns of names that keep their own scalars when others are merged; default: none.
        max_scalars: the maximum number of scalars of rows, over all stages; above it, rows are merged along the module tree and
            statistics are skipped; default 500. The global numbers (`run/…`) are not counted.
        max_histograms: the same for histograms, which are added up; default 100.
        histogram_every_n_steps: the least number of steps between two histograms of a row in TensorBoard, and the interval at
            which rules without `stats` measure histograms (except on CUDA, where counting takes longer); default 50.
        prefix: the text before the tags of scalars, histograms and texts; default `watch/`, below which your own charts are not
            buried. Tables have it too, except `watch/`; `latest` never has it.
        loggers: which loggers of the Trainer are written to: `all` (default), `tensorboard`, names of their classes, or a list
            of these; an empty list for none. A TensorBoard gets every watched step, another logger those at which Lightning
            logs (`log_every_n_steps`).
        logdir: a folder of this machine for a TensorBoard run of this package, in a new folder `run_<n>`, if none of these
            loggers is a TensorBoard. Default: none.
        on_error: `raise` (default), or `warn`: if the monitor fails, stop watching, warn once and let training continue.
        max_overhead: the maximum share of the step time that watching may take, for example 0.05; on a GPU the share of the
            time of the host. Above it, `every_n_steps` and the rules' own intervals increase for the rest of the run, with
            one warning. Default: no limit.
        consumers: your own `StepConsumer` objects, or mappings with `class_path` and `init_args`. Each gets a view of every
            watched step when the step ends, after the loggers. Default: none.
        report: a file, such as `report.html`, for the page with the data of the fit, written at its end. Loggers of W&B,
            MLflow, Neptune and trackio get it too. It needs a TensorBoard logger, or `logdir`. Default: none.

    Raises:
        RuleError: an invalid value; at fit start also a rule that matches nothing.

    Example:
        >>> StatsMonitor(watch=[Watch(params="*.weight", tensors="grad", stats="norm")], every_n_steps=10)
        StatsMonitor(watch=[Watch(params='*.weight', tensors=('grad',), stats=('norm',))], every_n_steps=10)
    """

    def __init__(
        self,
        watch: Sequence[Mapping[str, Any] | Watch] | None = None,
        *,
        every_n_steps: int | Sequence[int] | Mapping[str, int] = 1,
        stages: str | Sequence[str] = ("train",),
        scalars: str | Sequence[str] | None = None,
        max_scalars: int = MAX_SCALARS,
        max_histograms: int = MAX_HISTOGRAMS,
        histogram_every_n_steps: int = HISTOGRAM_EVERY_N_STEPS,
        prefix: str = ROOT,
        loggers: str | Sequence[str] = "all",
        logdir: str | os.PathLike[str] | None = None,
        on_error: str = "raise",
        max_overhead: float | None = None,
        consumers: Sequence[Mapping[str, Any] | StepConsumer] | None = None,
        report: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self.watch = None if watch is None else as_rules(Watch, watch, "watch")
        if self.watch is not None and not self.watch:
            raise RuleError("watch is an empty list; give at least one rule, or omit it for the default ones")
        self.every_n_steps = every_n_steps
        self.schedule: EveryN = every_n(every_n_steps, "every_n_steps")
        self.stages = as_stages(stages)
        refuse_idle_stages(self.stages, self.watch or DEFAULT_WATCH)
        self.scalars = as_patterns("scalars", scalars)
        check_options(prefix, on_error, max_overhead)
        self.max_scalars = as_count("max_scalars", max_scalars)
        self.max_histograms = as_count("max_histograms", max_histograms)
        self.histogram_every_n_steps = as_count("histogram_every_n_steps", histogram_every_n_steps, 1)
        self.prefix = prefix
        self.loggers = as_loggers(loggers)
        check_local("logdir", logdir, "give the Trainer a TensorBoardLogger for another")
        self.logdir = logdir
        self.on_error = on_error
        self.max_overhead = max_overhead
        if report is not None:
            check_path("report", report)
        self.report = report
        self._overhead_limit = OverheadLimit(max_overhead, self.schedule)
        self.consumers = as_consumers(consumers)
        self._producers: dict[str, Producer] = {}  # the producer of each stage, during a run
        self._log: MonitorLog | None = None
        self._context: TrainerContext | None = None  # what the consumers are given; None without consumers
        self._latest = Latest()

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        return options_repr(self, StatsMonitor, scalars=[], consumers=[], loggers=("all",))

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle belongs to no run."""
        return {**super().__getstate__(), "_log": None}

    @override
    def _state(self) -> dict[str, Any]:
        """The averages of the noise scale, and the intervals that `max_overhead` has widened."""
        self._flush()
        producer = self._trained
        return {} if producer is None else {**producer.state_dict(), **self._overhead_limit.state_dict(producer.observer)}

    @override
    def _load_state(self, state: dict[str, Any]) -> None:
        self._flush()  # Publish finished steps first: they belong to the state before loading.
        producer = self._trained
        if producer is not None:
            damaged = producer.load_state_dict(state)
            self._warn_of_damage([*damaged, *self._overhead_limit.load_state_dict(producer.observer, state)])

    @property
    def latest(self) -> dict[str, float]:
        """The statistics of the last logged step by tag: all measured rows, whatever `max_scalars` is; empty before the first.

        With other `stages`, also those of the last run of each. On CUDA it waits for the copy of the last step.
        """
        self._flush()
        return self._latest.values()

    @override
    def _refuse_setting(self, setting: Setting) -> None:
        refuse_setting(setting, self.stages)

    @override
    def _resolve(self, model: nn.Module, trainer: Trainer | None = None, earlier: Earlier | None = None) -> Resolved:
        rules = self._watched(trainer)
        plan = resolve(
            model,
            rules,
            self.schedule,
            self._label,
            with_loss="train" in self.stages,
            loss_alone=self._watches_loss_alone,
            draws_every=self.histogram_every_n_steps,
            name="the default watch" if self.watch is None else "watch",
        )
        return Resolved(plan, plans_of(self, plan))

    @override
    def _resolve_dry(self, model: nn.Module, trainer: Trainer) -> Resolved:
        # Pass the Trainer, which has the guests: a guest such as a HealthMonitor adds rows to this monitor.
        return self._resolve(model, trainer)

    def _watched(self, trainer: Trainer | None) -> Sequence[Watch] | None:
        """The rules to watch: its own, and those that guests need besides; None for the default rules."""
        needed = [rule for guest in self._guests(trainer) for rule in guest.rules]
        return [*(DEFAULT_WATCH if self.watch is None else self.watch), *needed] if needed else self.watch

    @property
    def _watches_loss_alone(self) -> bool:
        """Whether the loss is watched also if no rule matches anything."""
        return False

    def _guests(self, trainer: Trainer | None) -> list[Guest]:
        """The callbacks that read the steps of this monitor."""
        if trainer is None:
            return []
        guests = (callback.guest_of(self, trainer) for callback in our_callbacks(trainer))
        return [guest for guest in guests if guest is not None]

    def _limits(self, plan: Plan, plans: dict[str, Plan]) -> Limits:
        return limits_of(self, plan, plans)

    @override
    def _check_resolved(self, resolved: Resolved, setting: Setting, earlier: Earlier) -> Earlier:
        plan, plans = resolved
        if not plan.rows:
            return earlier
        about = [(each.where, each.rule, [plan.rows[row].tensor for row in each.members]) for each in plan.rules]
        refuse_for_strategy(setting, about)
        if "train" in plans:
            refuse_changed_sums(plan, earlier.transforms)
        written = (*earlier.written, Written(name_of(self.prefix), plans, self._limits(plan, plans)))
        refuse_common_tags(written)
        return earlier._replace(written=written)

    @override
    def _lines(self, resolved: Resolved) -> list[MatchLine]:
        plan, _ = resolved
        watched = plan if "train" in self.stages else plan.forward()
        return plan_report(watched, histogram_every_n_steps=self.histogram_every_n_steps)

    @override
    def _left_out(self, model: nn.Module, resolved: Resolved) -> list[LeftOut]:
        return left_out_of(model, (each.rule for each in resolved.plan.rules))

    @override
    def _build(self, trainer: Trainer, run: LightningRun, resolved: Resolved) -> Sequence[Participant]:
        self._latest, self._producers = Latest(), {}
        plan, alone = resolved.plan, is_alone(trainer)
        model: Any = run.model
        if not alone:
            check_ranks_agree(plan, model.device)
        if not plan.rows:
            return []
        # The run notes the prefix and the plans of each monitor before it builds the monitor: the last entry is of this one.
        written = run.earlier.written[-1]
        self._log = MonitorLog(self, trainer, run)
        guests = self._guests(trainer)
        if self.consumers or guests:
            folder = folder_of_run(trainer, self._log.writer.loggers, has_own=run.logdir_of(self) is not None)
            self._context = TrainerContext(trainer, folder)
        consumers = [*self.consumers, *(guest.consumer(self._log.writer, self._context) for guest in guests)]
        publisher = Publisher([self._latest, self._log.writer, *consumers])
        leads = {stage: run.earlier.leads(written, stage) for stage in written.plans}
        self._producers = producers_of(self, written.plans, leads, run, publisher, alone)
        if self._trained is not None:
            damaged = self._trained.load_state_dict(self._saved)
            damaged += self._overhead_limit.start(self._trained.observer, run.meter.clock, self._saved)
            self._warn_of_damage(damaged)
            self._saved = {}
        if trainer.is_global_zero and run.is_fit and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            refuse_without_events(self.report, self._log.writer.loggers)
        self._log.start(trainer, written.plans, written.limits, has_readers=bool(consumers))
        # The run closes this publisher when it ends. Set it only here, after all checks have passed.
        self._publisher = publisher
        publisher.start(plan.index, self._context or RunContext())
        return [producer.observer for producer in self._producers.values()]

    @property
    @override
    def _rules(self) -> str:
        return ", ".join(f"watch[{i}]" for i in range(len(self.watch))) if self.watch else "the default rules"

    @override
    def _after_step(self, producer: Producer) -> None:
        self._overhead_limit.warn(producer.observer)

    @override
    def _write_page(self, trainer: Trainer, producer: Producer | None) -> None:
        if self._log is not None and producer is not None and self._run is not None:
            self._log.write_page(trainer, producer.observer, self._run.participants)

    @override
    def _detach(self, error: BaseException | None = None) -> None:
        run, folder = self._run, None
        if error is None and self.report is not None and self._log is not None and run is not None and run.is_fit:
            folder = run_folder(self._log.writer.loggers)
        try:
            super()._detach(error)
        finally:
            self._log = None
        if folder is not None and run is not None and run.trainer is not None:
            leave_report(folder, Path(str(self.report)).expanduser().absolute(), run.trainer.loggers)
