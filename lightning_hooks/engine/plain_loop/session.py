"""`Instrument`: the driver of a plain loop, which assembles a run from the callbacks of its list and tells it of steps."""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, cast
from weakref import ref

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.assembly import TRAIN, Assembly, assemble
from lightning_hooks.engine.lookouts.planned import Planned
from lightning_hooks.engine.participants.facts import ModelFacts
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.plain_loop.checks import (
    AllParameters,
    as_callbacks,
    as_optimizers,
    check_calls,
    refuse_foreign,
)
from lightning_hooks.engine.plain_loop.found_losses import FoundLosses
from lightning_hooks.engine.plain_loop.other_steps import OtherSteps
from lightning_hooks.engine.plain_loop.part import InLoop, LoopPart
from lightning_hooks.engine.plain_loop.run import Folder, LoopRun
from lightning_hooks.engine.plain_loop.steps import LoopSteps
from lightning_hooks.engine.plain_loop.wrappers import unwrapped_model
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.errors import RuleError, shown
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules.fields import as_count
from lightning_hooks.stats.sections import refuse_narrow

_STARTED: Final[set[Instrument]] = set()
"""Those that `start` has begun and nobody has closed. They stay alive, because nobody need hold them."""


@atexit.register
def _close_started() -> None:
    for each in [*_STARTED]:
        each.close()
    if Instrument.never_begun:
        said = "write `with instrument(…):` around the loop, or `watched = instrument(…).start()` before it"
        warnings.warn(f"instrument: a block was never entered, and nothing was watched; {said}", stacklevel=2)


class Instrument:
    """What `instrument(…)` returns: a context manager, which registers hooks on entry and removes them on exit.

    After the block the callbacks, `latest` and `view` still have the last step, and nothing keeps model and optimizers alive.

    Args:
        model: as of `instrument`, and so are all others but `planned`.
        planned: returns the schedules that a Trainer advances, without keeping them alive.

    Attributes:
        callbacks: those of the list, in order.
        model: the root module.
        optimizers: the optimizers whose steps end a step; empty if `step()` ends it, and after the block.
        latest: the statistics of the last finished step by tag: those of the first monitor of the list; empty before it.
        view: the same as a `StepView`.
        stopped: why a consumer or an action asked to stop, for the loop to act on; None if none did.
        never_begun: of the class, the number of objects that were made and not begun; a process that ends with some says so.

    Raises:
        RuleError: as of `instrument`; or the block is entered a second time.
        UnsupportedError: as of `instrument`.
    """

    never_begun: ClassVar[int] = 0

    def __init__(
        self,
        model: nn.Module,
        callbacks: InLoop | Sequence[InLoop],
        *,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        calls: str = "training",
        first_step: int = 0,
        folder: Folder = None,
        logdir: Folder = None,
        planned: Callable[[], Sequence[Planned]] = tuple,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise RuleError(f"model must be a torch.nn.Module, got {model!r}")
        model = unwrapped_model(model)
        self.callbacks = as_callbacks(callbacks)
        optimizers = as_optimizers(optimizer)
        refuse_foreign(model, optimizers)
        check_calls(calls)
        first = as_count("first_step", first_step)
        self._run: LoopRun | None = LoopRun(model, optimizers, self.callbacks, first_step=first, folder=folder, logdir=logdir)
        self._run.hook_manager.switch.counts = calls
        self._run.planned = planned
        refuse_narrow(self._run.device)
        self._model = ref(model)
        self._latest = self._run.latest
        self._parts: list[LoopPart] = [each.in_loop(self._run) for each in self.callbacks]
        self._others = OtherSteps(model)
        self._found = FoundLosses(model, self._asks_for_losses, self._show_loss, self._measure_loss)
        self._steps = LoopSteps(self._run, self._parts, first, self._others.forget, self._found)
        assembly = self._assemble(self._run)
        self._producer: Producer | None = assembly.producers.get(TRAIN)
        participants = (each for made in assembly.assembled for each in made.participants)
        self._participants: list[Participant] = [*assembly.observers, *participants]
        self._context = self._run.context
        self._was_entered = False
        Instrument.never_begun += 1

    def _assemble(self, run: LoopRun) -> Assembly:
        acting = [(part, part.contribution) for part in self._parts if part.contribution is not None]
        contributions = [contribution for _, contribution in acting]
        facts = ModelFacts(run.model, lambda: run.optimizers)
        structure = facts.structure if any(each.plans for each in contributions) else None
        assembly = assemble(contributions, device=run.device, facts=self._steps.facts_of_step, structure=structure)
        facts.lookouts = assembly.lookouts
        producer = assembly.producers.get(TRAIN)
        for (part, _), made in zip(acting, assembly.assembled, strict=True):
            part.assembled(made, producer)
        if producer is not None:
            self._steps.watch(producer, facts)
        return assembly

    def __enter__(self) -> Instrument:
        """Register the hooks, all or none."""
        if self._was_entered:
            raise RuleError("instrument: it can be entered once; write `with instrument(…)` for each loop")
        self._was_entered, run = True, self._open("it")
        Instrument.never_begun -= 1
        try:
            for part in self._parts:
                part.start()
            self._steps.register(before=True)
            # A block without an optimizer may hold rules only, which need no step.
            if run.optimizers or self._producer is not None:
                self._others.register(run.hook_manager.run_handles)
            self._found.register(run.hook_manager.run_handles)
            run.join(*self._participants)
            # These hooks end the step, so they must run after those of participants.
            self._steps.register(before=False)
            self._steps.begin()
        except BaseException as error:
            run.close()
            self._close_parts(run, error)
            raise
        return self

    def start(self) -> Instrument:
        """Begin without a `with` block: register the hooks. `close()` ends it, or the end of the process.

        Returns:
            This object.

        Raises:
            RuleError: it has begun already.

        Example:
            >>> import torch
            >>> from lightning_hooks import StatsMonitor, instrument
            >>> model = nn.Sequential(nn.Linear(2, 1))
            >>> watched = instrument(model, [StatsMonitor([{"modules": "0", "tensors": "output"}])]).start()
            >>> _ = model(torch.ones(1, 2)); watched.step()
            >>> watched.close(); "output_mean/0" in watched.latest
            True
        """
        self.__enter__()
        _STARTED.add(self)
        return self

    def close(self) -> None:
        """End what `start` has begun, as the end of a `with` block does; a second call does nothing."""
        self.__exit__(None, None, None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Remove all hooks, and drop the references to the model."""
        run = self._run
        _STARTED.discard(self)
        if run is None:
            return
        for part in self._parts:
            part.leave(error)
        complaint = "" if error is not None else self._others.complaint(run.optimizers, run.model)
        run.close()
        try:
            if error is None:
                self._steps.publish_pending()
        finally:
            self._close_parts(run, error)
            self._release(run)
        if complaint:
            warnings.warn(complaint, stacklevel=2)

    def _close_parts(self, run: LoopRun, error: BaseException | None) -> None:
        for part in self._parts:
            part.is_over = True
            part.close(error)
        run.close_boards()

    def _release(self, run: LoopRun) -> None:
        """Drop everything that keeps the model alive: the user may keep this object for its last step."""
        run.optimizers = []
        self._steps.close()
        self._run, self._producer, self._participants, self._parts = None, None, [], []

    def _open(self, called: str) -> LoopRun:
        if self._run is None:
            raise RuleError(f"instrument: {called} was called after the with block, in which nothing is watched any more")
        return self._run

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
    def optimizers(self) -> list[Any]:
        """The optimizers whose steps end a step; empty if `step()` ends it, and after the block."""
        return [] if self._run is None else self._run.optimizers

    @property
    def stopped(self) -> str | None:
        """The reason of the first request to stop; None if there was none."""
        return self._context.stopped

    @property
    def latest(self) -> dict[str, float]:
        """The statistics of the last finished step, by tag; empty before the first."""
        self._steps.publish_pending()
        return self._latest.values()

    @property
    def view(self) -> StepView:
        """The view of the last finished step; waits for numbers that are still on a device."""
        self._steps.publish_pending()
        return self._latest.views.get(TRAIN, StepView(step=-1))

    def step(self) -> None:
        """End the step, in a loop without an optimizer.

        Raises:
            RuleError: an optimizer was given, whose step ends the step; or the block is over.
        """
        run = self._open("step()")
        if run.optimizers:
            raise RuleError("step() is for loops without an optimizer; here the optimizer's step ends the step")
        if self._producer is not None:
            parameters = cast(Optimizer, AllParameters(run.model))
            run.hook_manager.before_step(self._participants, parameters)
        self._steps.end()

    def note_loss(self, loss: Tensor) -> None:
        """Measure a loss in the place of those that were found in this step; their mean is `run/loss`.

        Without it the loss of a step is that of its backward passes, as the tensors whose backward reaches the model give it.

        Args:
            loss: any shape, without a loss scale.

        Raises:
            RuleError: it is not a tensor, or the block is over.

        Example:
            >>> import torch
            >>> from lightning_hooks import StatsMonitor, instrument
            >>> model = nn.Linear(2, 1)
            >>> with instrument(model, [StatsMonitor([{"params": "*"}])]) as watched:
            ...     for loss in (model(torch.ones(1, 2)).sum(), torch.tensor(2.0) + 0 * model.bias.sum()):
            ...         watched.note_loss(loss * 0 + 3.0)
            ...         loss.backward()
            ...     watched.step()
            >>> watched.latest["run/loss"]
            3.0
        """
        if not isinstance(loss, Tensor):
            raise RuleError(f"note_loss: loss must be a tensor, got {shown(loss)}")
        self._open("note_loss()")
        self._found.noted(loss)
        self._measure_loss(loss)

    def _asks_for_losses(self) -> bool:
        return self._run is not None and self._run.hook_manager.switch.is_on

    def _show_loss(self, loss: Tensor) -> None:
        for participant in () if self._run is None else self._run.hook_manager.acting.does["saw_loss"]:
            participant.saw_loss(loss)

    def _measure_loss(self, loss: Tensor) -> None:
        if self._producer is not None:
            self._producer.observer.whole_rows.note_loss(loss)
            for participant in self._participants:
                participant.look_at_loss()

    def suspend(self) -> None:
        """Remove all hooks until `resume()`, for a trainer that knows where its steps begin and end."""
        if self._run is not None:
            # Such a trainer may note its losses after their backward passes.
            self._found.waits = True
            self._run.hook_manager.end_batch()

    def resume(self, *, again: bool = False) -> None:
        """Begin a step, or the next batch of it; after `suspend()` the hooks are registered again.

        Args:
            again: whether to begin the step again, because its optimizer was not called: a loss scaler skips such a step.
        """
        if self._run is not None:
            if again:
                self._steps.forget()
            self._steps.begin()

    @property
    def next_step(self) -> int:
        """The number of the step that ends next."""
        return self._steps.number
