"""`instrument`: the engine around a plain PyTorch loop or in a notebook."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.assembly import TRAIN, Contribution, assemble
from lightning_hooks.engine.participants.facts import ModelFacts
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.participants.shards import has_units
from lightning_hooks.engine.plain_loop.board import LoopBoard
from lightning_hooks.engine.plain_loop.changing import changing_participants
from lightning_hooks.engine.plain_loop.checks import (
    AllParameters,
    as_optimizers,
    check_calls,
    refuse_foreign,
)
from lightning_hooks.engine.plain_loop.context import LoopContext
from lightning_hooks.engine.plain_loop.health import loop_reporter
from lightning_hooks.engine.plain_loop.other_steps import OtherSteps
from lightning_hooks.engine.plain_loop.recording import loop_recording
from lightning_hooks.engine.plain_loop.rules import read_rules
from lightning_hooks.engine.plain_loop.steps import LoopSteps
from lightning_hooks.engine.plain_loop.wrappers import unwrapped_model
from lightning_hooks.engine.recording.participant import RecordingParticipant
from lightning_hooks.engine.running.run import Run
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.errors import RuleError, shown
from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.plan.rank_check import check_ranks_agree
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.recorder.record import FlightRecord
from lightning_hooks.records.consumer import Latest, Publisher, StepConsumer, as_consumers
from lightning_hooks.records.limits import HISTOGRAM_EVERY_N_STEPS
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules import Apply, Hook, Watch
from lightning_hooks.rules.fields import as_count, check_local
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.sections import refuse_narrow


class Instrument:
    """Watch and change a model in a plain PyTorch loop; the same engine as the callbacks. Written `instrument(…)`.

    A context manager, which removes the hooks on exit. With an optimizer, a step ends when the optimizer has stepped, including
    gradient accumulation; with several optimizers, when each has stepped. Without an optimizer, `step()` ends a step, only
    transforms with `when="backward"` are allowed, and `final_grad`, `update` and `state` are refused. A forward pass without
    gradients while the model is in evaluation mode, such as a validation, is not a part of a step; see `calls`. With several
    processes (`torch.distributed`), every process must use `instrument` with the same rules if tensors are watched or
    transforms draw random numbers, because tables are merged and seeds shared over all processes.

    Args:
        model: the root module; of what Fabric, accelerate or `DistributedDataParallel` returned, the module inside.
        watch: the tensors to watch: `Watch` rules, or mappings with the fields of a rule. Default: those of `StatsMonitor()`,
            or none if `apply`, `hooks` or `health` is given and `logdir` is not.
        apply: the gradients to change, or with `tensor="output"` or `"input"` the activations: `Apply` rules, or mappings;
            default: none.
        hooks: custom hooks: `Hook` rules, or mappings; default: none.
        optimizer: one optimizer, several, or None (default); of what Fabric or accelerate returned, the optimizer inside.
        consumers: your own `StepConsumer` objects, or mappings with `class_path` and `init_args`. Each gets a view of every
            step when the step ends. Default: none.
        folder: the folder on this machine where consumers write files; they get it as `run.folder`. Default: none.
        health: whether health rules say what is wrong with the training, on standard error and in `findings.jsonl` in `folder`:
            True for the default rules, or rules as of `HealthMonitor(rules=…)`; call `note_loss` for the loss. Default False.
        calls: which calls of modules belong to a step: `training` (default), those with gradients enabled or while `model` is
            in training mode; `gradients`, only those with gradients enabled, for loops that collect data without gradients in
            training mode; `all`, for measuring without training. A call that does not belong to a step is neither measured
            nor changed, and custom hooks are not called.
        first_step: the number of the first step, for a loop that resumes; default 0.
        logdir: a folder of this machine for an event file, in a new folder `run_<n>`, as of `StatsMonitor`: for the page
            (`lightning-hooks view`) and TensorBoard. `folder` is then that folder if it is not given. Default: none.
        recorder: whether a flight recorder notes every call, and writes `flight_record/` into the folder when a number is not
            finite or an exception ends the block; or a mapping of options, as of `FlightRecorder`.
        reference: good runs that the health rules compare the loop with, as of `HealthMonitor`. Default: none.

    After the block, `compute()` and `record` still return the last step; the object no longer keeps model and optimizers alive.

    Attributes:
        model: the root module.
        optimizers: the optimizers whose steps end a step; empty if `step()` ends it, and after the block.
        record: the last finished step.
        stopped: why a consumer asked to stop, for the loop to act on; None if no consumer did.

    Raises:
        RuleError: an invalid rule or argument, such as an optimizer that holds no parameter of the model, before any hook is
            registered; or the block is entered a second time.
        UnsupportedError: the optimizer does not support hooks around its step.

    Example:
        >>> from lightning_hooks import Watch
        >>> model = nn.Linear(2, 1, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> rules = [Watch(params="*", tensors=["grad", "update"], stats="norm")]
        >>> with instrument(model, watch=rules, optimizer=optimizer) as watched:
        ...     for _ in range(2):
        ...         optimizer.zero_grad()
        ...         model(torch.tensor([[3.0, 4.0]])).sum().backward()
        ...         optimizer.step()
        >>> watched.record.step, round(watched.compute()["grad_norm/weight"], 3)
        (1, 5.0)
        >>> model = nn.Sequential(nn.Linear(2, 1))
        >>> with instrument(model, watch=[Watch(modules="0", tensors="output", stats="mean")]) as watched:
        ...     model(torch.zeros(1, 2)).sum().backward()
        ...     watched.step()
        >>> watched.compute()["output_mean/0"] == model[0].bias.item()
        True
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        watch: Sequence[Watch | Mapping[str, Any]] | None = None,
        apply: Sequence[Apply | Mapping[str, Any]] = (),
        hooks: Sequence[Hook | Mapping[str, Any]] = (),
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        consumers: Sequence[StepConsumer | Mapping[str, Any]] = (),
        folder: str | os.PathLike[str] | None = None,
        health: bool | Mapping[str, Any] | Sequence[Any] = False,
        calls: str = "training",
        first_step: int = 0,
        logdir: str | os.PathLike[str] | None = None,
        recorder: bool | Mapping[str, Any] = False,
        reference: str | Sequence[str | os.PathLike[str]] | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise RuleError(f"model must be a torch.nn.Module, got {model!r}")
        model = unwrapped_model(model)
        self._model: Callable[[], nn.Module | None] = lambda: model
        self.optimizers = as_optimizers(optimizer)
        refuse_foreign(model, self.optimizers)
        check_calls(calls)
        rules, applies, hook_rules, health_rules = read_rules(
            watch,
            apply,
            hooks,
            health,
            reference,
            has_optimizer=bool(self.optimizers),
            writes=logdir is not None,
            has_units=has_units(model),
        )
        self._run = Run(model)
        self._run.hook_manager.switch.counts = calls
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        refuse_narrow(device)
        is_diagnosed = any(rule.enabled for rule in health_rules or ())
        draws = None if logdir is None else HISTOGRAM_EVERY_N_STEPS
        self._plan = resolve(model, rules, EveryN(), with_loss=True, loss_alone=is_diagnosed, draws_every=draws)
        if rules or is_diagnosed:
            check_ranks_agree(self._plan, device)
        check_local("folder", folder, "give a local one")
        boards = [] if logdir is None else [LoopBoard(logdir, lambda: self._producer)]
        folder = boards[0].folder if folder is None and boards else folder
        self._context = LoopContext(model, self.optimizers, None if folder is None else Path(folder).expanduser().resolve())
        self._latest = Latest()
        self._reporter = None if health_rules is None else loop_reporter(health_rules, self._focus)
        self._publisher = Publisher([self._latest, *boards, *filter(None, [self._reporter]), *as_consumers(consumers)])
        self._producer: Producer | None = None
        first = as_count("first_step", first_step)
        self._others = OtherSteps(model)
        self._steps = LoopSteps(self._run.hook_manager, self.optimizers, self._publisher, first, self._others.forget)
        contributions = []
        if self._plan.rows:
            contributions.append(Contribution("instrument", plans={TRAIN: self._plan}, publisher=self._publisher))
        changing = changing_participants(model, applies, hook_rules, lambda: self.optimizers)
        contributions.append(Contribution(participants=changing))
        recording = loop_recording(recorder, model, lambda: self.optimizers, self._context.folder, device)
        if recording is not None:
            contributions.append(recording.contribution())
        facts = ModelFacts(model, lambda: self.optimizers)
        assembly = assemble(
            contributions,
            device=device,
            facts=self._steps.facts_of_step,
            structure=facts.structure if self._plan.rows else None,
        )
        self._producer = assembly.producers.get(TRAIN)
        self._flight = None if recording is None else recording.flight
        if self._producer is not None:
            self._steps.watch(self._producer, facts)
        self._participants: list[Participant] = [
            *assembly.observers,
            *(p for each in assembly.assembled for p in each.participants),
        ]
        self._was_entered = self._is_over = False

    def __enter__(self) -> Instrument:
        """Register the hooks, all or none."""
        if self._was_entered:
            raise RuleError("instrument: it can be entered once; write `with instrument(…)` for each loop")
        self._was_entered = True
        try:
            self._publisher.start(self._plan.index, self._context)
            self._steps.register(before=True)
            # A block without an optimizer may hold rules only, which need no step.
            if self.optimizers or self._producer is not None:
                self._others.register(self._run.hook_manager.run_handles)
            for participant in self._participants:
                self._run.join(participant)
            # These hooks end the step, so they must run after those of participants.
            self._steps.register(before=False)
            self._steps.begin()
        except BaseException as error:
            self._run.close()
            self._publisher.close(error)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Remove all hooks, and drop the references to the model."""
        if self._is_over:
            return
        if self._flight is not None:
            self._flight.flush() if error is None else self._flight.record_failure(error)
        complaint = "" if error is not None else self._others.complaint(self.optimizers, self.model)
        self._run.close()
        try:
            if kind is None:
                self._publish_pending()
        finally:
            self._publisher.close(error)
            self._release()
        if complaint:
            warnings.warn(complaint, stacklevel=2)

    def _release(self) -> None:
        """Drop everything that keeps the model alive: the user may keep this object for its last step."""
        self._is_over = True
        self._model = ref(self.model)
        del self._run, self._plan
        self._steps.close()
        self._producer, self._participants, self.optimizers = None, [], []
        if self._flight is not None:
            self._flight.close()

    @property
    def model(self) -> nn.Module:
        """The root module.

        Raises:
            RuleError: the block is over, and nothing else holds the model.
        """
        model = self._model()
        if model is None:
            raise RuleError("instrument: the model is gone; after the with block the object does not keep it alive")
        return model

    @property
    def stopped(self) -> str | None:
        """The reason of the first consumer that asked to stop; None if no consumer did."""
        return self._context.stopped

    @property
    def findings(self) -> list[Finding]:
        """What health rules have found, in the order in which they found it; empty without `health`."""
        return [] if self._reporter is None else self._reporter.diagnosis.findings

    @property
    def causes(self) -> list[Cause]:
        """What most likely explains the findings."""
        return [] if self._reporter is None else self._reporter.diagnosis.causes

    @property
    def flight_record(self) -> FlightRecord | None:
        """What the flight recorder has recorded; None if nothing went wrong, or without `recorder`."""
        return None if self._flight is None else self._flight.record

    def _focus(self, steps: int) -> None:
        if self._producer is not None:
            self._producer.observer.shares[0].focus(steps)

    def step(self) -> None:
        """End the step, in a loop without an optimizer.

        Raises:
            RuleError: an optimizer was given, whose step ends the step; or the block is over.
        """
        if self._is_over:
            raise RuleError("instrument: step() was called after the with block, in which nothing is watched any more")
        if self.optimizers:
            raise RuleError("step() is for loops without an optimizer; here the optimizer's step ends the step")
        if self._producer is not None:
            for participant in self._participants:
                self._run.hook_manager.before_step(participant, AllParameters(self.model))  # type: ignore[arg-type]
        self._steps.end()

    def suspend(self) -> None:
        """Remove all hooks until `resume()`, for a loop that knows where its steps begin and end."""
        if not self._is_over:
            self._run.hook_manager.end_batch()

    def resume(self, *, again: bool = False) -> None:
        """Register the hooks again after `suspend()`.

        Args:
            again: whether to begin the step again, because its optimizer was not called: a loss scaler skips such a step.
        """
        if not self._is_over:
            if again:
                self._steps.forget()
            self._steps.begin()

    @property
    def next_step(self) -> int:
        """The number of the step that ends next."""
        return self._steps.number

    def note_loss(self, loss: Tensor) -> None:
        """Measure the loss of a backward; the losses of a step are merged, and their mean is `run/loss`.

        Args:
            loss: any shape, without a loss scale.

        Raises:
            RuleError: it is not a tensor, or the block is over.

        Example:
            >>> model = nn.Linear(2, 1)
            >>> with instrument(model, watch=[{"params": "*"}]) as watched:
            ...     for loss in (model(torch.ones(1, 2)).sum(), torch.tensor(2.0) + 0 * model.bias.sum()):
            ...         watched.note_loss(loss * 0 + 3.0)
            ...         loss.backward()
            ...     watched.step()
            >>> watched.compute()["run/loss"]
            3.0
        """
        if not isinstance(loss, Tensor):
            raise RuleError(f"note_loss: loss must be a tensor, got {shown(loss)}")
        if self._is_over:
            raise RuleError("instrument: note_loss() was called after the with block, in which nothing is watched any more")
        if self._producer is not None:
            self._producer.observer.note_loss(loss)
            for participant in self._participants:
                if isinstance(participant, RecordingParticipant):
                    participant.look_at_loss()

    def compute(self) -> dict[str, float]:
        """The statistics of the last finished step, by tag; empty before the first."""
        self._publish_pending()
        return self._latest.values()

    @property
    def record(self) -> StepView:
        """The view of the last finished step; waits for numbers that are still on a device."""
        self._publish_pending()
        return self._latest.views.get("train", StepView(step=-1))

    def _publish_pending(self) -> None:
        if self._producer is not None:
            self._producer.publish_pending()


instrument = Instrument
