"""`StatsMonitor`: what flows through every layer and parameter, at every step."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import nn
from typing_extensions import override

from lightning_hooks._fields import check_stages
from lightning_hooks.callbacks._base import HooksCallback, our_callbacks
from lightning_hooks.callbacks._loggers import Outlet
from lightning_hooks.callbacks._options import check_options
from lightning_hooks.callbacks._strategies import refuse_unsupported
from lightning_hooks.callbacks._tags import refuse_common_tags
from lightning_hooks.callbacks._trainer import current_step
from lightning_hooks.callbacks._widening import Widening
from lightning_hooks.engine.changer import Changer
from lightning_hooks.engine.custom import CustomParticipant
from lightning_hooks.engine.dispatcher import Dispatcher
from lightning_hooks.engine.observer import Observer
from lightning_hooks.engine.participant import Participant
from lightning_hooks.engine.pending import Pending
from lightning_hooks.engine.plan import Plan
from lightning_hooks.engine.recorder import Recorder
from lightning_hooks.engine.report import Match, hooks_report, links_report, plan_report
from lightning_hooks.engine.resolve_rows import resolve
from lightning_hooks.engine.stages import STAGE_PREFIX, RunObserver
from lightning_hooks.errors import RuleError
from lightning_hooks.reading import as_rules
from lightning_hooks.rules import Watch
from lightning_hooks.schedule import EveryN, every_n
from lightning_hooks.stats.record import StepRecord

_SAVED_AS = "lightning_hooks.StatsMonitor"


class StatsMonitor(HooksCallback):
    """Watch named modules and parameters, and log statistics of their tensors.

    Without arguments: `output` and `output_grad` of every leaf module, `param`, `grad` and `update` of every trainable
    parameter, with the default statistics, at every step.

    Args:
        watch: rules, or mappings that hold a rule's fields; default as above.
        every_n_steps: every how many steps, counted as Lightning counts ((step + 1) % n == 0); or a list of steps; or a
            mapping with `first`, `every`, `last`. A rule's own value goes before it. Default 1.
        stages: any of `train`, `validate`, `test`, `predict`; default `train`. Outside training what flows forward (`input`,
            `output`) is watched in every batch and merged exactly into one row a run, with tags `val_…`, `test_…`,
            `predict_…`; the sanity check before training is left out.
        scalars: patterns of names whose scalars stay in full when the others are merged; default none.
        max_scalars: how many scalars are written before rows are merged along the module tree; default 500.
        prefix: put before every tag; default none.
        on_error: `raise` (default), or `warn`: on an error of ours, stop watching, say so once and let training go on.
        max_overhead: the greatest share of the time of a step that watching may take, 0.05 for example; where it takes more,
            `every_n_steps` and the rules' own intervals grow for the rest of the run, with one warning. Default: no limit.

    Raises:
        RuleError: a value that cannot be meant; at fit start also a rule that matches nothing.

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
    ) -> None:
        super().__init__()
        self.watch = None if watch is None else as_rules(Watch, watch, "watch")
        if self.watch is not None and not self.watch:
            raise RuleError("watch is an empty list; give at least one rule, or leave it out for the default ones")
        self.every_n_steps = every_n_steps
        self.schedule: EveryN = every_n(every_n_steps, "every_n_steps")
        self.stages = (stages,) if isinstance(stages, str) else tuple(stages)
        check_stages(self.stages)
        self.scalars = [scalars] if isinstance(scalars, str) else list(scalars or ())
        check_options(self.scalars, max_scalars, prefix, on_error, max_overhead)
        self.max_scalars = max_scalars
        self.prefix = prefix
        self.on_error = on_error
        self.max_overhead = max_overhead
        self._widening = Widening(max_overhead, self.schedule)
        self._recorder: Recorder | None = None
        self._pending: Pending | None = None
        self._run_recorders: dict[str, Recorder] = {}
        self._records: dict[str, StepRecord] = {}
        self._saved: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._outlet: Outlet | None = None

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
        }
        shown = [f"{k}={getattr(self, k)!r}" for k, default in defaults.items() if getattr(self, k) != default]
        return f"StatsMonitor({', '.join(shown)})"

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle is not attached to anything."""
        self._settle()
        return {**super().__getstate__(), "_recorder": None, "_pending": None, "_run_recorders": {}, "_outlet": None}

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called for a checkpoint: save what goes on from step to step: averages, intervals that have grown.

        Not through `state_dict`, with which Lightning refuses two monitors that watch the same before we can say why.
        """
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        self._settle()
        if self._saved or self._recorder is None:
            state = self._saved or self._last  # loaded, and the fit has not begun; or it is over
        else:
            state = self._state_of(self._recorder)
        if state:
            checkpoint.setdefault(_SAVED_AS, {})[self._saved_at(trainer)] = state

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called with a checkpoint, before or after the fit starts: go on where it stopped."""
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        state = checkpoint.get(_SAVED_AS, {}).get(self._saved_at(trainer), {})
        if self._recorder is not None and self._dispatcher is not None:
            self._settle()  # what has ended is not of what is loaded
            self._recorder.load_state_dict(state)
            self._widening.load_state_dict(self._recorder.observer, state)
        else:
            self._saved = state

    def _state_of(self, recorder: Recorder) -> dict[str, Any]:
        return {**recorder.state_dict(), **self._widening.state_dict(recorder.observer)}

    def _saved_at(self, trainer: Trainer) -> str:
        monitors = [callback for callback in our_callbacks(trainer) if isinstance(callback, StatsMonitor)]
        same = [monitor for monitor in monitors if monitor.prefix == self.prefix]
        return f"{self.prefix}{same.index(self)}"

    @property
    def latest(self) -> dict[str, float]:
        """Tag to value of the last logged step, every measured row whatever `max_scalars` says; empty before the first.

        With further `stages` also of the last run of each. Numbers that are on their way from a device are waited for.
        """
        self._settle()
        return {tag: value for record in self._records.values() for tag, value in record.latest.items()}

    def match(self, model: LightningModule) -> Match:
        """What the rules match in a model, without training.

        Args:
            model: the root.

        Raises:
            RuleError: where a fit would.
        """
        return Match(plan_report(self._plan(model)))

    @property
    @override
    def _stages(self) -> Collection[str]:
        return self.stages

    @override
    def _build(self, trainer: Trainer, pl_module: LightningModule, dispatcher: Dispatcher) -> Sequence[Participant]:
        plan = self._plan(pl_module)
        where = "the default watch" if self.watch is None else "watch"
        about = [
            (f"{where}[{i}]", known.rule, [plan.rows[row].tensor for row in known.members])
            for i, known in enumerate(plan.rules)
        ]
        refuse_unsupported(trainer, about)
        leads = self._refuse_same_tags(plan, trainer)
        self._records = {}
        self._outlet = Outlet(trainer)
        observers: list[Participant] = []
        self._recorder = self._pending = None
        if "train" in self.stages:
            observer = Observer(plan, on_error=self.on_error, device=pl_module.device)
            self._refuse_changed_sums(plan, dispatcher)
            self._recorder = self._recorder_of(observer, self.prefix, leads)
            self._recorder.load_state_dict(self._saved)
            self._pending = Pending(self._recorder, self._take)
            self._widening.start(observer, dispatcher, self._saved)
            self._saved = {}
            observers.append(observer)
        self._run_recorders = {}
        for stage in [stage for stage in STAGE_PREFIX if stage in self.stages]:
            run_observer = RunObserver(plan, stage, on_error=self.on_error, device=pl_module.device)
            self._run_recorders[stage] = self._recorder_of(run_observer, self.prefix + STAGE_PREFIX[stage], leads)
            observers.append(run_observer)
        return observers

    def _refuse_changed_sums(self, plan: Plan, dispatcher: Dispatcher) -> None:
        """Refuse to compare a step's gradient with its micro-batches' where a transform has changed it in between."""
        asked = {stat for each in plan.asked for stat in each.stats} & {"micro_cosine", "noise_scale"}
        if asked and any(isinstance(p, Changer) and p.acts_at_step for p in dispatcher.participants):
            raise RuleError(
                f"watch: {min(asked)!r} compares the gradient of the step with those of its micro-batches, and a transform of "
                "stage 'step' before this callback would change it; put StatsMonitor before GradientTransforms"
            )

    def _recorder_of(self, observer: Observer, prefix: str, leads: bool) -> Recorder:
        return Recorder(observer, prefix=prefix, max_scalars=self.max_scalars, scalars=self.scalars, summaries=leads)

    @property
    @override
    def _wants_final(self) -> bool:
        return self._recorder is not None and "final_grad" in self._recorder.observer.plan.tensors

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before the first batch: write the matched taps and the layout of the charts."""
        recorder = self._recorder
        if self._outlet is None or recorder is None or self._dispatcher is None:
            return
        plan = recorder.observer.plan
        plans = {"": plan, **{STAGE_PREFIX[stage]: run.observer.plan for stage, run in self._run_recorders.items()}}
        there = self._dispatcher.participants
        links = [link for p in there for link in getattr(p, "links", ())]
        hooks = [hook for p in there if isinstance(p, CustomParticipant) for hook in p.hooks]
        markdown = Match([*plan_report(plan), *links_report(links), *hooks_report(hooks)]).markdown()
        charts = [(prefix + tensor, stat) for prefix, each in plans.items() for tensor, stat in each.charts]
        try:
            self._outlet.write_start(markdown, charts, self.prefix, current_step(trainer), transforms=bool(links))
            if self._pending is not None:  # metrics are read before they begin anew
                self._pending.together = self._outlet.only_tensorboard and not recorder.observer.table.users.have_metrics
        except Exception as error:
            recorder.observer.fail(error)

    @property
    @override
    def _waits(self) -> bool:
        return self._pending is not None and self._pending.waits

    @override
    def _finish(self, trainer: Trainer, step: int) -> None:
        recorder, dispatcher, pending = self._recorder, self._dispatcher, self._pending
        if recorder is None or pending is None or dispatcher is None or self._outlet is None:
            return
        observer = recorder.observer
        acts = not observer.gone and dispatcher.acts(observer)
        if not acts and not pending.waits:
            return
        with observer.account:
            try:
                if not acts:
                    pending.heed()
                else:
                    reports = {**dispatcher.take_reports(), **(observer.overhead.report() if observer.overhead else {})}
                    pending.end(step, reports, dispatcher.moments.scale)
                    if not observer.calls_checked:
                        observer.warn_uncalled(dispatcher.called)
                self._widening.say(observer)
            except Exception as error:
                observer.fail(error)

    def _take(self, *records: StepRecord) -> None:
        self._records["train"] = records[-1]
        if self._outlet is not None:
            self._outlet.write(*records)

    def _settle(self) -> None:
        """Write the steps that have ended and are not written: their numbers were on their way, or waited for the next ones."""
        if self._pending is not None and self._recorder is not None and self._pending.waits:
            observer = self._recorder.observer
            with observer.account:
                try:
                    self._pending.settle()
                except Exception as error:
                    observer.fail(error)

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
    def _leave(self) -> None:
        try:
            super()._leave()
        finally:
            try:
                self._settle()
                if self._recorder is not None:
                    self._last = self._state_of(self._recorder)  # for a checkpoint that is saved after the fit
            finally:
                self._recorder = self._pending = self._outlet = None  # they hold the model
                self._run_recorders = {}

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when the fit failed or was interrupted: write the last step that ended, leave no hook."""
        try:
            self._settle()
        except Exception as error:  # a device that failed; the exception of the fit says more
            warnings.warn(f"the last step is not written: {type(error).__name__}: {error}", stacklevel=2)
        super().on_exception(trainer, pl_module, exception)

    @override
    def _finish_run(self, trainer: Trainer, stage: str) -> None:
        recorder = self._run_recorders.get(stage)
        if recorder is None or self._outlet is None or recorder.observer.gone:
            return
        observer = recorder.observer
        assert isinstance(observer, RunObserver)
        try:
            try:
                record = self._records[stage] = recorder.record(current_step(trainer), {})
            finally:
                observer.start_anew()
            self._outlet.write(record)
        except Exception as error:
            observer.fail(error)

    def _plan(self, model: nn.Module) -> Plan:
        return resolve(model, self.watch, self.schedule)

    def _refuse_same_tags(self, plan: Plan, trainer: Trainer) -> bool:
        """Refuse tags that an earlier monitor writes; say whether this one is the first with its prefix."""
        first = True
        for other in our_callbacks(trainer):
            if not isinstance(other, StatsMonitor) or other is self or other._dispatcher is None:
                continue
            if other.prefix != self.prefix:
                continue
            first = False
            refuse_common_tags(plan, other._plan(other._dispatcher.model))
        return first
