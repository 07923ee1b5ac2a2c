"""Diagnosing: the job of a `HealthMonitor`. It reads the steps of a `StatsMonitor` beside it, or watches for itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import ReferenceType, ref

from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks._checks import Earlier
from lightning_hooks.callbacks._driver import flush
from lightning_hooks.callbacks._first_batch import Checked
from lightning_hooks.callbacks._health_trail import HealthTrail
from lightning_hooks.callbacks._job import Guest, Job
from lightning_hooks.callbacks._loop_health import HealthPart, LoopOutlet, refuse_in_loop
from lightning_hooks.callbacks._loop_monitor import LoopGuest
from lightning_hooks.callbacks._monitor_options import MonitorOptions
from lightning_hooks.callbacks._monitor_plans import Resolved, resolve_stages
from lightning_hooks.callbacks._monitor_state import MonitorState
from lightning_hooks.callbacks._monitoring import Monitoring
from lightning_hooks.callbacks._ours import our_callbacks
from lightning_hooks.callbacks._outlet import TrainerOutlet
from lightning_hooks.callbacks._run_context import leaves_files
from lightning_hooks.callbacks._surroundings import surroundings_of
from lightning_hooks.callbacks._trainer import current_step, in_fit, is_quick, is_under_way
from lightning_hooks.callbacks._watching import Watching
from lightning_hooks.codec import decode, encode
from lightning_hooks.engine.assembly import Contribution
from lightning_hooks.engine.lookouts import lookouts_of
from lightning_hooks.engine.lookouts.found_schedules import found_schedules
from lightning_hooks.engine.lookouts.generators import Begins
from lightning_hooks.engine.lookouts.resume import ResumeLookout
from lightning_hooks.engine.lookouts.saved_seam import Seam, seam_of
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.engine.participants.shards import has_units
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.engine.recording.flight import Flight
from lightning_hooks.errors import RuleError, printable
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.known_cause import KnownCause
from lightning_hooks.health.reference.causes import CAUSES_WITH_REFERENCE
from lightning_hooks.health.reporter import Reporter
from lightning_hooks.health.watching import fields_of_watch
from lightning_hooks.nested.tensors import tensors_of
from lightning_hooks.plan.plan import Plan
from lightning_hooks.records.facts import Sighting
from lightning_hooks.records.limits import HISTOGRAM_EVERY_N_STEPS
from lightning_hooks.rules import Watch
from lightning_hooks.rules.watch import UnwrittenWatch
from lightning_hooks.tensor_kinds import is_plain, without_subclass

if TYPE_CHECKING:
    from lightning_hooks.callbacks._base import HooksCallback
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks._run import LightningRun
    from lightning_hooks.callbacks._run_context import TrainerContext
    from lightning_hooks.callbacks.health import HealthMonitor


class Diagnosing(Monitoring["HealthMonitor"]):
    """The job of a `HealthMonitor`.

    Attributes:
        reporter: of the current run, or of the last one; None before the first.
    """

    def __init__(self, owner: HealthMonitor) -> None:
        super().__init__(owner)
        self.reporter: Reporter | None = None
        self._requests: TrainerContext | None = None  # During a run, it takes what actions request: stop, save.
        self._is_diagnosing = False
        self._around: Surroundings | None = None  # during a fit of a Trainer
        self._writes = False  # whether the current run leaves files
        self._lookouts_now: list[ReferenceType[Lookout]] = []  # of the current run
        self._trail = HealthTrail(type(owner).__name__, self._record_folder, self.explain)

    @property
    def flight(self) -> Flight | None:
        """The flight of the current run, or of the last one; None if no calls were noted."""
        return self._trail.flight

    @override
    def for_copy(self) -> Self:
        copied = super().for_copy()
        copied.reporter, copied._requests, copied._is_diagnosing, copied._around = None, None, False, None
        copied._lookouts_now = []
        copied._trail = HealthTrail(type(self.owner).__name__, copied._record_folder, copied.explain)
        return copied

    @property
    @override
    def options(self) -> MonitorOptions:
        return MonitorOptions(
            self.owner.schedule,
            histogram_every_n_steps=HISTOGRAM_EVERY_N_STEPS,
            on_error=self.owner.on_error,
            only_tables=True,
            watches_loss_alone=self._has_rules,
            every_step=self._has_rules,
        )

    @property
    def _has_rules(self) -> bool:
        return any(rule.enabled for rule in self.owner._health_rules)

    @property
    @override
    def rules(self) -> str:
        return "the health rules"

    @override
    def refuse_beside(self, callbacks: Sequence[HooksCallback]) -> None:
        super().refuse_beside(callbacks)
        if next(each for each in callbacks if isinstance(each._job, Diagnosing)) is not self.owner:
            raise RuleError(
                "there are two HealthMonitors, which would tell each finding twice; keep one, with the rules=, accept= "
                "and actions= of both"
            )

    @override
    def in_loop(self, run: LoopRun) -> LoopPart:
        refuse_in_loop(self.owner._actions, self.owner.check_first_batch, self.label)
        self.refuse_beside(run.callbacks)
        own = None if self._host(run.callbacks) is not None else self._own_part(run)
        around = Surroundings.of(
            run.model, lambda: run.optimizers, schedules=lambda: found_schedules(run.optimizers), planned=run.planned
        )
        lookouts = self._lookouts(around)
        trail = self._trail.in_loop(run, self.owner._health_rules, self.label)
        return HealthPart(own, lambda: self.reporter, lookouts, trail, self._end_diagnosis)

    def _own_part(self, run: LoopRun) -> LoopPart:
        rules = self._watch(has_units(run.model), from_start=True)
        return self.part_in_loop(run, (), [LoopGuest(rules, self._report_in_loop)])

    @override
    def guest_in_loop(self, monitor: Job[Any, Any], run: LoopRun) -> LoopGuest | None:
        if monitor is not self._host(run.callbacks):
            return None
        return LoopGuest(self._watch(has_units(run.model), beside=True), self._report_in_loop, self._has_rules)

    def _report_in_loop(self, focus: Callable[[int], None], note_finding: Callable[[], None]) -> Reporter:
        self.reporter = Reporter(self.new_diagnosis(), self.owner._actions, LoopOutlet(focus, note_finding))
        self._is_diagnosing = True
        return self.reporter

    @override
    def guest_of(self, monitor: Job[Any, Any], trainer: Trainer) -> Guest | None:
        if (is_under_way(trainer) and not in_fit(trainer)) or monitor is not self._host(our_callbacks(trainer)):
            return None
        rules = self._watch(_has_units(trainer), beside=True)
        return Guest(rules, partial(self._start_reporter, trainer), self._has_rules)

    @override
    def guests(self, trainer: Trainer | None) -> list[Guest]:
        return [] if trainer is None else [Guest((), partial(self._start_reporter, trainer))]

    def _watch(self, can_have_units: bool, **how: bool) -> list[Watch]:
        """What the health rules need."""
        needed = fields_of_watch(self.owner._health_rules, has_units=can_have_units, **how)
        return [UnwrittenWatch(**fields) for fields in needed]

    def _host(self, callbacks: Sequence[HooksCallback]) -> Watching | None:
        """The monitor whose steps the rules read; None if there is none that watches the same rows as often."""
        own = self.owner.schedule
        for job in (callback._job for callback in callbacks):
            if not isinstance(job, Watching) or job.owner.watch is not None:
                continue
            schedule = job.owner.schedule
            is_dense = schedule.steps is None and schedule.every <= own.every and schedule.last is None
            if is_dense and "train" in job.stages:
                return job
        return None

    def new_diagnosis(self) -> Diagnosis:
        """A diagnosis that has seen no step.

        Raises:
            RuleError: two rules have one name.
        """
        diagnosis = Diagnosis(self.owner._health_rules, self.owner.accept, CAUSES_WITH_REFERENCE)
        diagnosis.evidence.ask = self._seen_of
        return diagnosis

    def _start_reporter(self, trainer: Trainer, writer: Any, context: Any) -> Reporter:
        outlet, self._requests = TrainerOutlet(trainer, writer, context), context
        self._writes = not is_quick(trainer) and leaves_files(trainer, writer.loggers)
        reporter = Reporter(self.new_diagnosis(), self.owner._actions, outlet, writes=self._writes)
        self.reporter = reporter
        self._is_diagnosing = in_fit(trainer)
        saved = self.take_saved()
        if saved.diagnosis is not None:
            with self.starting_again():
                self._saved = MonitorState()  # If the diagnosis is damaged, all else starts again too.
                reporter.load_state_dict(saved.diagnosis)
                self._saved = saved
        return reporter

    @override
    def resolve(self, model: nn.Module, trainer: Trainer | None = None, earlier: Earlier | None = None) -> Resolved:
        if trainer is not None and self._host(our_callbacks(trainer)) is not None:
            return Resolved(Plan([], [], ()), {})
        watched = self._watch(_has_units(trainer), from_start=True)
        return resolve_stages(model, watched, self.options, label=self.label, name="the default watch")

    @override
    def begin_batch(self, batch: Any, batch_idx: int) -> None:
        self._trail.flights.begin_batch(batch, batch_idx)
        if self.run is None:
            return
        acting = self.run.hook_manager.acting
        for participant in acting.does["saw_batch"]:
            participant.saw_batch(batch)
        producer = self.run.producers.get("train")
        if producer is not None and producer.observer in acting.members:
            producer.observer.whole_rows.note_batch(
                each for tensor in tensors_of(batch) if (each := _readable(tensor)) is not None
            )

    @override
    def contribute(self, trainer: Trainer, run: LightningRun, resolved: Resolved) -> Contribution | None:
        if self._host(our_callbacks(trainer)) is not None:
            self.run = run
            contribution: Contribution | None = Contribution(type(self.owner).__name__)
        else:
            contribution = super().contribute(trainer, run, resolved)
        if contribution is not None and run.is_fit:
            self._around = surroundings_of(trainer, run, self._saved_seam)
            contribution.lookouts = self._lookouts(self._around)
            rules, callbacks = self.owner._health_rules, our_callbacks(trainer)
            contribution.others = self._trail.contributions(trainer, run, rules, callbacks, self.label)
        return contribution

    @override
    def after_backward(self) -> None:
        self._trail.flights.after_backward()

    @override
    def fail(self, error: BaseException) -> None:
        self._trail.flights.fail(error)

    def _saved_seam(self) -> Seam | None:
        return self.take_saved().seam

    def _seam(self) -> Seam | None:
        """The optimizers and schedules of now; None if they cannot be read, since a checkpoint must be saved all the same."""
        trainer = None if self.run is None else self.run.trainer
        if self._around is None or trainer is None:
            return None
        try:
            return seam_of(self._around, current_step(trainer), self._begins())
        except Exception as error:
            warnings.warn(f"the state of the optimizers is not compared after a resume: {printable(str(error))}", stacklevel=2)
            return None

    def _begins(self) -> Begins:
        """What is known of the generators of random numbers at the begin of the training."""
        alive = (known() for known in self._lookouts_now)
        return next((each.begins for each in alive if isinstance(each, ResumeLookout)), {})

    def _lookouts(self, around: Surroundings) -> list[Lookout]:
        enabled = (rule for rule in self.owner._health_rules if rule.enabled)
        lookouts = lookouts_of(around, (kind for rule in enabled for kind in (*rule.looks_for, *rule.quotes)))
        # The run keeps them: this object may outlive it, and would keep the optimizers alive.
        self._lookouts_now = [*map(ref, lookouts)]
        return lookouts

    def _seen_of(self, step: int) -> tuple[Sighting, ...]:
        """What lookouts know of one of the last steps."""
        alive = (lookout for known in self._lookouts_now if (lookout := known()) is not None)
        return tuple(sighting for lookout in alive for sighting in lookout.of_step(step))

    @override
    def state(self) -> dict[str, Any]:
        state = super().state()
        if self.reporter is None:
            return state
        seam = self._seam()
        return {**state, "diagnosis": self.reporter.state_dict(), **({} if seam is None else {"seam": encode(seam)})}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        flush(self.run)
        saved = decode(MonitorState, state, "state")
        if saved.diagnosis is not None and self.reporter is not None:
            self.reporter.load_state_dict(saved.diagnosis)
        self._saved = saved
        self.proceed(saved)

    @override
    def end_training(self, trainer: Trainer) -> None:
        if self.owner._current_run is not None:
            self._trail.flights.flush()
        super().end_training(trainer)
        if self.reporter is not None and self._requests is not None:
            producer = None if self.run is None else self.run.producers.get("train")
            if producer is not None and not producer.observer.has_lost_a_share:
                self.reporter.end = current_step(trainer)
            self.reporter.finish()
            self._requests.fulfil(trainer)

    @property
    def folder(self) -> Path | None:
        """The folder of the run; None if it has none, or nothing is to be written."""
        return None if self._requests is None or not self._writes else self._requests.folder

    def _record_folder(self) -> Path | None:
        return self.folder

    def take_checks(self, trainer: Trainer, checked: Checked) -> bool:
        """Add what the checks of the first batch found to the findings. Returns whether a fit is diagnosed now."""
        if self.reporter is None or not self._is_diagnosing:
            return False
        self.reporter.add_checked(checked.findings, checked.judged, current_step(trainer))
        return True

    def explain(self, known: KnownCause) -> bool:
        """Explain what a rule finds. Returns whether a fit is diagnosed now, by this rule among others."""
        if self.reporter is None or not self._is_diagnosing or known.rule not in self.reporter.diagnosis.rules:
            return False
        self.reporter.diagnosis.explain_by(known)
        return True

    def raise_if_asked(self) -> None:
        """Raise the error that the action `raise` has asked for, once."""
        if self.reporter is not None:
            self.reporter.raise_if_asked()

    @override
    def close(self, error: BaseException | None) -> None:
        try:
            super().close(error)
        finally:
            self._trail.flights.close()
            self._requests, self._around = None, None
            self._end_diagnosis()

    def _end_diagnosis(self) -> None:
        self._is_diagnosing = False


def _has_units(trainer: Trainer | None) -> bool:
    """Whether units can be measured, as far as is known before a run."""
    return trainer is None or not is_under_way(trainer) or has_units(trainer.lightning_module)


def _readable(tensor: Tensor) -> Tensor | None:
    """A tensor of a batch to measure; None if it refuses even to be detached, as a subclass may."""
    if is_plain(tensor):
        return tensor
    try:
        with without_subclass():
            return tensor.detach()
    except Exception as error:
        warnings.warn(f"a {type(tensor).__name__} of the batch is not measured: {printable(str(error))}", stacklevel=2)
        return None
