"""The steps of a plain loop: hooks of its optimizers say where a step ends, and the next one begins at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from time import time
from typing import Any

from torch.optim import Optimizer

from lightning_hooks.engine.participants.facts import ModelFacts
from lightning_hooks.engine.plain_loop.checks import parameters_of, refuse_step, register
from lightning_hooks.engine.plain_loop.found_losses import FoundLosses
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.records.facts import StepFacts
from lightning_hooks.records.step_view import StepView


class LoopSteps:
    """Begins and ends the steps of a plain loop, and publishes them.

    Args:
        run: the block. A step ends when each of its optimizers has stepped; if there is none, when `end` is called.
        parts: of the objects of the list.
        number: of the first step.
        begins: called when the first step begins to end.
        losses: those that were found in the step.

    Attributes:
        number: of the step that ends next.
    """

    def __init__(
        self,
        run: LoopRun,
        parts: Sequence[LoopPart],
        number: int,
        begins: Callable[[], None],
        losses: FoundLosses,
    ) -> None:
        self.number = number
        self._hook_manager = run.hook_manager
        self._optimizers: Sequence[Optimizer] = run.optimizers
        self._parts = parts
        # At a step without measurements, this publisher passes on what the transforms report. The reports of all transforms
        # come together, so one writer is enough.
        writers = [part.writer for part in parts if part.writer is not None]
        self._publisher = Publisher([run.latest, *writers[:1]])
        self._producer: Producer | None = None
        self._facts: ModelFacts | None = None
        self._noted: StepFacts | None = None  # the facts as they were just before the first optimizer of the step stepped
        self._begins: Callable[[], None] | None = begins
        self._losses = losses
        self._stepped: set[int] = set()
        self._held: dict[int, list[Any]] = {}  # by id of an optimizer: its parameters at its last step

    def watch(self, producer: Producer, facts: ModelFacts) -> None:
        """Publish steps by a producer, with the facts of the model."""
        self._producer, self._facts = producer, facts

    def register(self, *, before: bool) -> None:
        """Register the hooks before, or those after, the steps of the optimizers."""
        for optimizer in self._optimizers:
            register(optimizer, self._before if before else self._after, self._hook_manager.run_handles, before=before)
            if not before:
                self._held[id(optimizer)] = parameters_of(optimizer)

    def begin(self) -> None:
        """Begin a step, or the next batch of it."""
        self._hook_manager.switch.left_out = False
        self._hook_manager.begin_batch(self.number, reporting=self._producer is None or not self._producer.views)

    def end(self) -> None:
        """End the step, and begin the next one."""
        self._note_begin()
        self._stepped.clear()
        self._losses.settle()
        self._hook_manager.switch.turn_off()
        try:
            self._publish()
            for part in self._parts:
                part.end_step(self.number)
        # Begin the next step even if a consumer raises, because the loop may catch the error and continue.
        finally:
            self._hook_manager.end_step()
            self.number += 1
            self.begin()

    def forget(self) -> None:
        """End the step without a view: it begins again under the same number."""
        self._stepped.clear()
        self._losses.forget()
        self._noted = None
        self._hook_manager.end_step()

    def facts_of_step(self) -> StepFacts:
        """The facts of the step, as they were before its first optimizer stepped."""
        assert self._facts is not None
        noted, self._noted = self._noted, None
        return self._facts.of_step() if noted is None else noted

    def close(self) -> None:
        """Drop what keeps the model and the optimizers alive; the number stays."""
        self._producer, self._facts, self._optimizers, self._parts = None, None, (), ()
        self._publisher.close(None)
        self._held.clear()
        del self._hook_manager

    def publish_pending(self) -> None:
        """Publish the finished steps, waiting for numbers that are still on a device."""
        if self._producer is not None:
            self._producer.flush()

    def _publish(self) -> None:
        producer = self._producer
        if producer is not None and (self._measures(producer) or producer.is_pending):
            with producer.guard():
                self._end_measured(producer)
        elif reports := self._hook_manager.take_reports():
            self._publisher.publish(StepView(self.number, wall_time=time(), summaries=reports))

    def _measures(self, producer: Producer) -> bool:
        return not producer.observer.stopped and self._hook_manager.acts(producer.observer) and producer.publishes

    def _end_measured(self, producer: Producer) -> None:
        if not self._measures(producer):
            producer.agree()
            return
        for number, due in producer.observer.due_shares.items():
            share = producer.observer.shares[number]
            if not share.is_between:
                share.note_uncalled(self._hook_manager.called, due)
        producer.end(self.number, self._hook_manager.take_reports)

    def _before(self, optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        refuse_step(optimizer, args, kwargs)
        self._note_begin()
        # If one optimizer steps again before the others have stepped, the step ends without them.
        if id(optimizer) in self._stepped:
            self.end()
        self._look_up_replaced(optimizer)
        if self._noted is None and self._facts is not None and self._reads_facts:
            self._noted = self._facts.of_step()
        self._hook_manager.before_step(self._hook_manager.participants, optimizer)
        self._hook_manager.phase("final", optimizer)
        self._hook_manager.phase("before_update", optimizer)

    @property
    def _reads_facts(self) -> bool:
        producer = self._producer
        return producer is not None and self._measures(producer) and not producer.is_between

    def _note_begin(self) -> None:
        begins, self._begins = self._begins, None
        if begins is not None:
            begins()

    def _look_up_replaced(self, optimizer: Optimizer) -> None:
        """Look targets up again if the optimizer has other parameters than at its previous step. A loop has no epochs."""
        held = parameters_of(optimizer)
        # The hooks of an unknown wrapper may be called with the optimizer inside.
        before = self._held.get(id(optimizer), held)
        self._held[id(optimizer)] = held
        if len(before) != len(held) or not all(map(is_, before, held)):
            self._hook_manager.refresh_in_batch()

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._hook_manager.phase("after_update", optimizer)
        # The step of the optimizer has not been made: replays of the graph make it, and call no hooks.
        if self._producer is not None and self._producer.observer.skips_capture():
            return
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self._optimizers):
            self.end()
