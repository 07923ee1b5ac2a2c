"""`StatsMonitor`: what flows through every layer and parameter, at every step."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import nn
from typing_extensions import override

from lightning_hooks.callbacks._base import HooksCallback, our_callbacks
from lightning_hooks.callbacks._loggers import LoggerWriter
from lightning_hooks.callbacks._options import check_options
from lightning_hooks.callbacks._strategies import refuse_unsupported
from lightning_hooks.callbacks._tags import refuse_common_tags, tags_of
from lightning_hooks.callbacks._trainer import current_step
from lightning_hooks.callbacks._widening import Widening
from lightning_hooks.engine.change.gradients import GradientChanger
from lightning_hooks.engine.hook_manager import HookManager
from lightning_hooks.engine.match_report import Match, hooks_report, links_report, plan_report
from lightning_hooks.engine.monitor.observer import Observer
from lightning_hooks.engine.monitor.producer import Producer
from lightning_hooks.engine.monitor.run_observer import RunObserver, forward_plan
from lightning_hooks.engine.participant import Participant
from lightning_hooks.engine.plan.plan import Plan
from lightning_hooks.engine.plan.resolve import DEFAULT_WATCH, resolve
from lightning_hooks.engine.user_hooks.participant import UserHooksParticipant
from lightning_hooks.errors import RuleError
from lightning_hooks.records.consumer import Latest, Publisher, StepConsumer, check_consumers
from lightning_hooks.records.step_view import STAGE_PREFIX
from lightning_hooks.rules import FORWARD_TENSORS, Watch, parse_tensor
from lightning_hooks.rules.fields import as_stages
from lightning_hooks.rules.reading import as_rules
from lightning_hooks.rules.schedule import EveryN, every_n

_SAVED_AS = "lightning_hooks.StatsMonitor"


class StatsMonitor(HooksCallback):
    """Watch named modules and parameters, and log statistics of their tensors.

    Without arguments: `output` and `output_grad` of every leaf module, `param`, `grad` and `update` of every trainable
    parameter, with the default statistics, at every step.

    Args:
        watch: rules, or mappings with the fields of a rule; default as above.
        every_n_steps: the interval in steps, counted as in Lightning ((step + 1) % n == 0); or a list of steps; or a mapping
            with `first`, `every`, `last`. A rule's own value overrides it. Default 1.
        stages: any of `train`, `validate`, `test`, `predict`; default `train`. Outside training `input` and `output`
            are watched in every batch and merged exactly into one row per run, with tags `val_…`, `test_…`, `predict_…`;
            the sanity check before training is skipped.
        scalars: patterns of names that keep their own scalars when others are merged; default: none.
        max_scalars: the maximum number of scalars; above it, rows are merged along the module tree; default 500.
        prefix: the prefix of every tag; default: none.
        on_error: `raise` (default), or `warn`: if the monitor fails, stop watching, warn once and let training continue.
        max_overhead: the maximum share of the step time that watching may take, for example 0.05. Above it, `every_n_steps`
            and the rules' own intervals increase for the rest of the run, with one warning. Default: no limit.
        consumers: your own `StepConsumer` objects. Each gets a view of every watched step when the step ends, after the
            loggers. Default: none.

    Raises:
        RuleError: an invalid value; at fit start also a rule that matches nothing.

    Example:
        >>> StatsMonitor(watch=[Watch(params="*.weight", tensors="grad", stats="norm")], every_n_steps=10)
        StatsMonitor(watch=[Watch(params='*.weight', tensors=('grad',), stats=('norm',))], every_n_steps=10)
    """

    def __init__(
        self,
        watch: Sequence[Mapping[str, Any] | Watch] | None = None,
        every_n_steps: int | Sequence[int] | Mapping[str, int] = 1,
        stages: str | Sequence[str] = ("train",),
        scalars: str | Sequence[str] | None = None,
        max_scalars: int = 500,
        prefix: str = "",
        on_error: str = "raise",
        max_overhead: float | None = None,
        consumers: Sequence[StepConsumer] | None = None,
    ) -> None:
        super().__init__()
        self.watch = None if watch is None else as_rules(Watch, watch, "watch")
        if self.watch is not None and not self.watch:
            raise RuleError("watch is an empty list; give at least one rule, or leave it out for the default ones")
        self.every_n_steps = every_n_steps
        self.schedule: EveryN = every_n(every_n_steps, "every_n_steps")
        self.stages = as_stages(stages)
        self.scalars = [scalars] if isinstance(scalars, str) else list(scalars or ())
        check_options(self.scalars, max_scalars, prefix, on_error, max_overhead)
        self.max_scalars = max_scalars
        self.prefix = prefix
        self.on_error = on_error
        self.max_overhead = max_overhead
        self._widening = Widening(max_overhead, self.schedule)
        self.consumers = check_consumers(consumers)
        self._producers: dict[str, Producer] = {}  # of each stage, during a run
        self._publisher: Publisher | None = None
        self._loggers: LoggerWriter | None = None
        self._latest = Latest(prefix)
        self._saved: dict[str, Any] = {}  # by a checkpoint, until the fit begins
        self._last: dict[str, Any] = {}  # of the last fit, for a checkpoint that is saved after it

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        defaults: dict[str, Any] = {
            "watch": None,
            "every_n_steps": 1,
            "stages": ("train",),
            "scalars": [],
            "max_scalars": 500,
            "prefix": "",
            "on_error": "raise",
            "max_overhead": None,
            "consumers": [],
        }
        shown = [f"{k}={getattr(self, k)!r}" for k, default in defaults.items() if getattr(self, k) != default]
        return f"StatsMonitor({', '.join(shown)})"

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle is not attached to anything."""
        self._settle()
        return {**super().__getstate__(), "_producers": {}, "_publisher": None, "_loggers": None}

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called for a checkpoint: save what goes on from step to step: averages, intervals that have grown.

        Not through `state_dict`, with which Lightning refuses two monitors that watch the same before we can say why.
        """
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        self._settle()
        state = self._saved or self._state() or self._last
        if state:
            checkpoint.setdefault(_SAVED_AS, {})[self._saved_at(trainer)] = state

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called with a checkpoint, before or after the fit starts: go on where it stopped."""
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        state = checkpoint.get(_SAVED_AS, {}).get(self._saved_at(trainer), {})
        producer = self._trained
        if producer is not None and self._hook_manager is not None:
            self._settle()  # what has ended is not of what is loaded
            producer.load_state_dict(state)
            self._widening.load_state_dict(producer.observer, state)
        else:
            self._saved = state

    def _saved_at(self, trainer: Trainer) -> str:
        monitors = [callback for callback in our_callbacks(trainer) if isinstance(callback, StatsMonitor)]
        same = [monitor for monitor in monitors if monitor.prefix == self.prefix]
        return f"{self.prefix}{same.index(self)}"

    def _state(self) -> dict[str, Any]:
        producer = self._trained
        return {} if producer is None else {**producer.state_dict(), **self._widening.state_dict(producer.observer)}

    @property
    def latest(self) -> dict[str, float]:
        """The statistics of the last logged step by tag: all measured rows, whatever `max_scalars` is; empty before the first.

        With other `stages`, also those of the last run of each. On CUDA it waits for the copy of the last step.
        """
        self._settle()
        return self._latest.values()

    def match(self, model: LightningModule) -> Match:
        """The dry run: what the rules match in a model.

        Args:
            model: the root module.

        Raises:
            RuleError: the errors that a fit would raise.
        """
        return Match(plan_report(self._plan(model)))

    @property
    @override
    def _stages(self) -> Collection[str]:
        return self.stages

    @override
    def _build(self, trainer: Trainer, pl_module: LightningModule, hook_manager: HookManager) -> Sequence[Participant]:
        self._latest, self._producers = Latest(self.prefix), {}
        plan = self._plan(pl_module)
        if not plan.rows:
            return []
        where = "the default watch" if self.watch is None else "watch"
        about = [
            (f"{where}[{i}]", known.rule, [plan.rows[row].tensor for row in known.members])
            for i, known in enumerate(plan.rules)
        ]
        refuse_unsupported(trainer, about)
        self._loggers = LoggerWriter(trainer, self.prefix, self.max_scalars, self.scalars)
        self._publisher = Publisher([self._latest, self._loggers, *self.consumers])
        self._last = {}
        if "train" in self.stages:
            observer = Observer(plan, on_error=self.on_error, device=pl_module.device)
            self._refuse_changed_sums(plan, hook_manager)
            producer = self._producers["train"] = self._producer(observer, "train", trainer)
            producer.load_state_dict(self._saved)
            self._widening.start(observer, hook_manager, self._saved)
            self._saved = {}
        for stage in [stage for stage in STAGE_PREFIX if stage != "train" and stage in self.stages]:
            if not forward_plan(plan).rows and any(map(_flows_forward, self.watch or DEFAULT_WATCH)):
                warnings.warn(f"stages: no rule matches anything to watch in {stage!r}", stacklevel=2)
                continue
            run_observer = RunObserver(plan, stage, on_error=self.on_error, device=pl_module.device)
            self._producers[stage] = self._producer(run_observer, stage, trainer)
        for other in self._others(trainer):
            refuse_common_tags(self._tags, other._tags)
        self._publisher.start(plan)
        return [producer.observer for producer in self._producers.values()]

    @property
    def _trained(self) -> Producer | None:
        """What publishes the steps of training."""
        return self._producers.get("train")

    @property
    @override
    def _rules(self) -> str:
        return ", ".join(f"watch[{i}]" for i in range(len(self.watch))) if self.watch else "the default rules"

    def _refuse_changed_sums(self, plan: Plan, hook_manager: HookManager) -> None:
        """Refuse to compare a step's gradient with its micro-batches' where a transform has changed it in between."""
        asked = {stat for each in plan.asked for stat in each.stats} & {"micro_cosine", "noise_scale"}
        if asked and any(isinstance(p, GradientChanger) and p.acts_at_step for p in hook_manager.participants):
            raise RuleError(
                f"watch: {min(asked)!r} compares the gradient of the step with those of its micro-batches, and a transform of "
                "when='step' before this callback would change it; put StatsMonitor before GradientTransforms"
            )

    def _producer(self, observer: Observer, stage: str, trainer: Trainer) -> Producer:
        assert self._publisher is not None
        leads = not any(other.prefix == self.prefix and stage in other.stages for other in self._others(trainer))
        return Producer(observer, self._publisher, summaries=leads)

    @property
    def _tags(self) -> set[str]:
        """All that it may write in the run."""
        return {
            tag
            for stage, producer in self._producers.items()
            for tag in tags_of(producer.observer.plan, self.prefix + STAGE_PREFIX[stage], producer.has_summaries)
        }

    def _others(self, trainer: Trainer) -> list[StatsMonitor]:
        """The monitors that were attached before this one."""
        ours = [callback for callback in our_callbacks(trainer) if isinstance(callback, StatsMonitor)]
        return [other for other in ours if other is not self and other._hook_manager is not None]

    @property
    @override
    def _wants_final(self) -> bool:
        return self._trained is not None and "final_grad" in self._trained.observer.plan.tensors

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before the first batch: write the matched taps and the layout of the charts."""
        producer = self._trained
        if self._loggers is None or producer is None or self._hook_manager is None:
            return
        plans = {STAGE_PREFIX[stage]: each.observer.plan for stage, each in self._producers.items()}
        there = self._hook_manager.participants
        links = [link for p in there for link in getattr(p, "links", ())]
        hooks = [hook for p in there if isinstance(p, UserHooksParticipant) for hook in p.hooks]
        markdown = Match([*plan_report(producer.observer.plan), *links_report(links), *hooks_report(hooks)]).markdown()
        charts = [(prefix + tensor, stat) for prefix, plan in plans.items() for tensor, stat in plan.charts]
        try:
            self._loggers.write_start(markdown, charts, current_step(trainer), transforms=bool(links))
        except Exception as error:
            producer.observer.fail(error)

    @property
    @override
    def _waits(self) -> bool:
        return self._trained is not None and self._trained.waits

    @override
    def _finish(self, trainer: Trainer, step: int) -> None:
        producer, hook_manager = self._trained, self._hook_manager
        if producer is None or hook_manager is None:
            return
        observer = producer.observer
        acts = not observer.gone and hook_manager.acts(observer)
        if not acts and not producer.waits:
            return
        with producer.guard():
            if not acts:
                producer.heed()
            else:
                reports = {**hook_manager.take_reports(), **(observer.overhead.report() if observer.overhead else {})}
                producer.end(step, reports, hook_manager.moments.scale)
                if not observer.calls_checked:
                    observer.warn_uncalled(hook_manager.called)
            self._widening.say(observer)

    def _settle(self) -> None:
        """Publish the steps that have ended and whose numbers were on their way from a device."""
        producer = self._trained
        if producer is not None and producer.waits:
            with producer.guard():
                producer.settle()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an epoch: write its last steps, since what follows may take long."""
        super().on_train_epoch_end(trainer, pl_module)
        self._settle()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the last batch: write the last step."""
        self._settle()

    @override
    def _start_run(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._settle()  # what was trained before is written before
        super()._start_run(trainer, pl_module, stage)

    @override
    def _leave(self, error: BaseException | None = None) -> None:
        try:
            super()._leave()
        finally:
            publisher, self._publisher = self._publisher, None
            try:
                self._settle()
            finally:
                self._last = self._state() or self._last
                self._producers, self._loggers = {}, None
                if publisher is not None:
                    publisher.close(error)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when the fit failed or was interrupted: write the last step that ended, leave no hook."""
        try:
            self._settle()
        except Exception as error:  # a device that failed; the exception of the fit says more
            warnings.warn(f"the last step is not written: {type(error).__name__}: {error}", stacklevel=2)
        self._leave(exception)

    @override
    def _finish_run(self, trainer: Trainer, stage: str) -> None:
        producer = self._producers.get(stage)
        if producer is None or producer.observer.gone:
            return
        observer = producer.observer
        assert isinstance(observer, RunObserver)
        try:
            try:
                producer.end(current_step(trainer), {})
            finally:
                observer.start_anew()
        except Exception as error:
            observer.fail(error)

    def _plan(self, model: nn.Module) -> Plan:
        return resolve(model, self.watch, self.schedule)


def _flows_forward(rule: Watch) -> bool:
    """Whether a rule asks for what there is outside training too."""
    tensors = rule.tensors or ("output",)
    return rule.modules is not None and any(parse_tensor(tensor)[0] in FORWARD_TENSORS for tensor in tensors)
