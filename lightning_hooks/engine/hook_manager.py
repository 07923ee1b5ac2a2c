"""One hook manager per model: one hook per place, participants in order, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf
from weakref import WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.installed_hooks import InstalledHooks
from lightning_hooks.engine.open_step import OpenStep
from lightning_hooks.engine.overhead import Account, Meter
from lightning_hooks.engine.participant import HasParameters, Participant
from lightning_hooks.engine.phases import Phases
from lightning_hooks.engine.plan.refresh import Refresh
from lightning_hooks.hooks import Gate, Handles
from lightning_hooks.hooks.handles import Removable

TRAIN = "train"
_LIVE: WeakSet[HookManager] = WeakSet()  # for `paused`, which is given a model only; keeps nothing alive


class HookManager:
    """Joins the participants of one model, and says when their hooks come and go.

    Args:
        model: the root module.
        optimizers: called for the optimizers whose updates are watched; they may change during a fit.
    """

    def __init__(self, model: nn.Module, optimizers: Callable[[], Sequence[Optimizer]] = tuple) -> None:
        self.model = model
        self.gate = Gate()
        self.meter = Meter()
        self.participants: list[Participant] = []
        self.stage = TRAIN
        self.refresh = Refresh(model)
        self._open: dict[str, OpenStep] = {}
        self._like: dict[str, OpenStep] = {}  # the last step of each stage, which the next one is most often like
        self._called: dict[str, set[int]] = {}
        self._hooks = InstalledHooks(model, self.gate, optimizers)
        self.phases = Phases()
        self._pauses = 0
        self._reopen = False
        self.resting: OpenStep | None = None
        """The step of training that is under way or was the last, where nobody acts in it and no hook is left from another."""
        self._rested = 0  # steps since the last that was begun
        self._next_due: float = 0  # nobody acts in a step before this one

    @property
    def run_handles(self) -> Handles:
        """Handles of what stays as long as this."""
        return self._hooks.run_handles

    @property
    def final_hook(self) -> Callable[[], Removable] | None:
        """Puts on what calls the moment `final`, where anybody needs it; its handle takes it off."""
        return self._hooks.final_hook

    @final_hook.setter
    def final_hook(self, place: Callable[[], Removable]) -> None:
        self._hooks.final_hook = place

    @property
    def step(self) -> int | None:
        """The step of training that is under way; between two None, or the last one where nobody acted in it."""
        opened = self._open.get(TRAIN)
        return None if opened is None else opened.step

    @property
    def active(self) -> list[tuple[Participant, Hashable]]:
        """Who acts in the step of the current stage, with the key of what they do."""
        opened = self._open.get(self.stage)
        return [] if opened is None else opened.active

    @property
    def called(self) -> set[int]:
        """The ids of the hooked modules that were called in the step of the current stage."""
        opened = self._open.get(self.stage)
        return set() if opened is None else opened.called

    def acts(self, participant: Participant) -> bool:
        """Whether a participant acts in the step of the current stage."""
        return participant in self._actors

    def join(self, participant: Participant) -> None:
        """Take a participant in, at its place in the order."""
        self.participants = sorted([*self.participants, participant], key=lambda p: p.order)
        self.reschedule()
        self._hooks.forget()
        _LIVE.add(self)
        participant.account = Account(self.meter)
        participant.joined(self.gate)
        self._hooks.place_inside(self.participants)

    def leave(self, participant: Participant) -> None:
        """Let a participant go; the others have their hooks again at once. The last one turns out the lights."""
        participant.left()
        self.reschedule()
        self._like.clear()
        self.participants = [p for p in self.participants if p is not participant]
        for opened in self._open.values():
            opened.let_go(participant)
        if not self.participants:
            self.close()
        else:
            placed = self._hooks.key is not None
            self._hooks.forget()
            if placed:
                self._install()

    @property
    def idle(self) -> bool:
        """Whether nobody acts in the step of training that is under way, and no hook is left from another."""
        return self.resting is not None

    def _rests(self, step: int) -> bool:
        """Whether nobody acts in a step of training, nor did in the one before: then there is nothing to begin or to end.

        Where only some steps are watched most are such ones, and they should cost nothing that can be measured.

        Args:
            step: the number of the step.
        """
        resting = self.resting
        if resting is None or self.refresh.requested:
            return False
        if step == resting.step:
            return True
        known = resting.step < step < self._next_due  # a loop that is turned back asks anew
        if not known and self._is_due(step):
            return False
        if not known:
            answers = [participant.next_due(step + 1) for participant in self.participants]
            self._next_due = min((at for at in answers if at is not None), default=inf)
        resting.step = step
        self._rested += 1
        return True

    def reschedule(self) -> None:
        """Look at the next step anew: who takes part in training, or when, may have changed, or something else goes on."""
        self.resting = None
        self._next_due = 0

    def interrupt(self) -> None:
        """Something that is no step of training begins, a validation for one: training is not watched meanwhile."""
        self.end_batch()
        self.reschedule()
        self.meter.interrupt()

    def begin_batch(self, step: int, *, stage: str = TRAIN, reporting: bool = False) -> None:
        """Open the gate for a batch; at the first batch of a step decide who acts and put the hooks in place.

        Args:
            step: the number of the step; in other stages than `train`, of the batch.
            stage: `train`, `validate`, `test` or `predict`.
            reporting: whether transforms report although no monitor asks them to.
        """
        if self._pauses or (stage == TRAIN and self._rests(step)):
            return
        opened = self._open.get(stage)
        fresh = opened is None or opened.step != step
        if fresh and stage == TRAIN:
            self._lap()
        if stage == TRAIN and self._nobody_acts(step, fresh):
            return
        self.reschedule()
        with self.meter.common if stage == TRAIN else self.meter.aside:
            self._begin(step, stage, reporting)

    def _is_due(self, step: int) -> bool:
        """Whether anybody acts in a step of training."""
        return any(participant.due(step, TRAIN) is not None for participant in self.participants)

    def _nobody_acts(self, step: int, fresh: bool) -> bool:
        """Whether nobody acts in a step of training and no hook is left from another: then there is nothing to do."""
        if self._hooks.key is not None or self.refresh.requested:
            return False
        if not fresh:
            return not self._open[TRAIN].active
        if self._is_due(step):
            return False
        self.stage = TRAIN
        self._open[TRAIN] = self.resting = OpenStep(step, [])
        return True

    def _lap(self) -> None:
        wall, common = self.meter.next_step(), self.meter.common.take()
        steps, self._rested = 1 + self._rested, 0
        for participant in self.participants:
            participant.note_cost(participant.account.take() + common, wall, steps)

    def _begin(self, step: int, stage: str, reporting: bool) -> None:
        self.stage = stage
        opened = self._open.get(stage)
        if opened is None or opened.step != step:
            if self.refresh.requested:
                self._refresh()
            active: list[tuple[Participant, Hashable]] = []
            for participant in self.participants:  # a comprehension would be one more call at every step
                key = participant.due(step, stage)
                if key is not None:
                    active.append((participant, key))
            opened = self._like.get(stage)
            if opened is None or opened.active != active:
                called = self._called.setdefault(stage, set())  # the same set at every step: the hooks that stay write into it
                opened = self._like[stage] = OpenStep(step, active, called)
            opened.open_anew(step)
            self._open[stage] = opened
            if stage == TRAIN:
                self.phases.clear()
            # Where a monitor takes part the reports are in its event, and nowhere else.
            reporting = opened.reports or (reporting and not any(participant.reports for participant in self.participants))
            reporting = reporting and stage == TRAIN
            for participant in opened.actors:
                with participant.account:
                    participant.begin_step(step, stage, reporting)
        if not opened.active:
            self._hooks.off()
        elif opened.key != self._hooks.key:
            self._install()
        for participant in opened.actors:
            participant.begin_batch()
        if opened.active:
            self._hooks.begin_batch()
        elif stage == TRAIN:
            self.resting = opened

    def shut(self) -> None:
        """Close the gate; the hooks stay, where the next step may begin at any moment."""
        self.gate.shut()
        self._reopen = False

    def end_batch(self) -> None:
        """A batch is over: close the gate and take the hooks off, so that nothing of ours gets into a copy of the model."""
        self.shut()
        if self._hooks.key is not None:
            with self.meter.common if self.stage == TRAIN else self.meter.aside:
                self._hooks.off()

    def end_step(self, stage: str = TRAIN) -> None:
        """End the step of a stage: close the gate, forget what only lived in it."""
        self.shut()
        self.reschedule()
        opened = self._open.pop(stage, None)
        if opened is not None and not opened.active:
            self.phases.clear()
            return
        with self.meter.common if stage == TRAIN else self.meter.aside:
            if stage == TRAIN:
                self.phases.clear()
                if opened is not None:
                    self.refresh.note(opened.key, opened.called)
            self._hooks.end_step()
            for participant in opened.actors if opened is not None else ():
                participant.end_step()

    def pause(self, paused: bool) -> None:
        """Take the hooks off, or, when the outermost pause ends, put back those of a step that is still open."""
        if paused and not self._pauses:
            self._reopen = self.gate.open
            self.gate.shut()
            self.reschedule()
            self._hooks.off()
            self._hooks.off_inside()
        self._pauses += 1 if paused else -1
        if paused or self._pauses:
            return
        self._hooks.place_inside(self.participants)
        if self._reopen and self._open.get(self.stage) is not None:  # else the batch is over
            self._install()
            self._hooks.begin_batch()

    def close(self) -> None:
        """Take everything away; harmless the second time."""
        self.gate.shut()
        self.reschedule()
        self._hooks.forget()
        self._hooks.off_inside()
        self.run_handles.close()
        for participant in self.participants:
            participant.left()
        self.phases.clear()
        self._open.clear()
        self._like.clear()
        _LIVE.discard(self)

    def before_step(self, participant: Participant, optimizer: HasParameters) -> None:
        """Let one participant act on the gradients of an optimizer's step."""
        if self.gate.open:
            actors = self._actors
            if participant in actors:
                self.phases.before_step(participant, optimizer, actors)

    def phase(self, name: str, optimizer: HasParameters) -> None:
        """Let every active participant look at a moment: `final`, `before_update` or `after_update`."""
        if self.gate.open:
            self.phases.at(name, optimizer, self._actors)

    def scaled_by(self, scale: Tensor) -> None:
        """Note the loss scale of the backward that begins; what flowed before it in this step is brought to that."""
        self.phases.scaled_by(scale, self._actors)

    def take_reports(self) -> dict[str, float]:
        """The reports of all participants, for whoever writes the step first."""
        out: dict[str, float] = {}
        for participant, _ in self.active:
            for tag, value in participant.take_reports().items():
                out[tag] = out.get(tag, 0.0) + value  # only counts have a tag in common
        return out

    def _refresh(self) -> None:
        self._hooks.look_again = True
        if self.refresh.run(target for participant in self.participants for target in participant.all_targets()):
            for participant in self.participants:
                participant.refreshed()
            self._hooks.forget()
        elif self._hooks.compiled_anew():
            self._hooks.forget()
            self._hooks.place_inside(self.participants)  # before the first trace, even if nobody acts in this step

    @property
    def _actors(self) -> list[Participant]:
        opened = self._open.get(self.stage)
        return [] if opened is None else opened.actors

    def _install(self) -> None:
        opened = self._open.get(self.stage)
        if opened is not None and opened.active:
            self._hooks.put(opened.active, opened.called, opened.key, self.participants, self.phase)


def live_hook_managers(model: nn.Module) -> list[HookManager]:
    """The hook managers whose model is this one, holds it, or is held by it."""
    inside = set(map(id, model.modules()))
    return [d for d in list(_LIVE) if id(d.model) in inside or any(m is model for m in d.model.modules())]
