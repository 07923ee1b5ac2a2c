"""One dispatcher per model: one hook per place, participants in order, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet, finalize

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.compiled import CompiledTaps
from lightning_hooks.engine.meter import Account, Meter
from lightning_hooks.engine.moments import Moments, hook_updates
from lightning_hooks.engine.param_hooks import ParameterHooks
from lightning_hooks.engine.participant import HasParameters, Participant
from lightning_hooks.engine.places import build_places
from lightning_hooks.engine.renewal import Renewal
from lightning_hooks.taps import Gate, Handles, register

TRAIN = "train"
_LIVE: WeakSet[Dispatcher] = WeakSet()  # for `paused`, which is given a model only; keeps nothing alive


@dataclass
class _Open:
    """A step that has begun and not ended. A validation run may fall into a step of training: each stage has its own."""

    step: int
    active: list[tuple[Participant, Hashable]]
    called: set[int] = field(default_factory=set)
    key: tuple[Any, ...] = ()  # equal for steps that need the same hooks

    def __post_init__(self) -> None:
        self.key = tuple([(id(p), key) for p, key in self.active])

    def let_go(self, participant: Participant) -> None:
        """Go on without a participant."""
        self.active = [(p, key) for p, key in self.active if p is not participant]
        self.__post_init__()


class Dispatcher:
    """Joins the participants of one model and owns every handle.

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
        self.extras = Handles()
        self.renewal = Renewal(model)
        self._open: dict[str, _Open] = {}
        self._called: dict[str, set[int]] = {}
        self._optimizers = optimizers
        self._handles = Handles()
        self._step_handles = Handles()
        self.compiled = CompiledTaps(model, self.gate, self._step_handles)
        self.moments = Moments()
        self._installed: tuple[Any, ...] | None = None
        self._parameters = ParameterHooks(model, self.gate, self._handles, self._step_handles)
        self._pauses = 0
        self._rested = 0  # steps since the last that was begun
        self._reopen = False
        # Handles know the hooked objects weakly, so the model can be collected, and a lost dispatcher leaves no hook.
        finalizer = finalize(self, _close_all, self._handles, self._step_handles, self.extras)
        finalizer.atexit = False

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
        self._installed = None
        _LIVE.add(self)
        participant.account = Account(self.meter)
        participant.joined(self.gate)
        self.compiled.place(self.participants)

    def leave(self, participant: Participant) -> None:
        """Let a participant go; the others keep their hooks. The last one turns out the lights."""
        participant.left()
        self.participants = [p for p in self.participants if p is not participant]
        for opened in self._open.values():
            opened.let_go(participant)
        if not self.participants:
            self.close()
        elif self._installed is not None:
            self._install()

    def rests(self, step: int) -> bool:
        """Whether nobody acts in a step of training, nor did in the one before: then there is nothing to begin or to end.

        Where only some steps are watched most are such ones, and they should cost nothing that can be measured.

        Args:
            step: the number of the step.
        """
        if not self.resting:
            return False
        opened = self._open[TRAIN]
        if opened.step == step:
            return True
        if self._pauses or self.renewal.wanted or not self.meter.runs:
            return False
        for participant in self.participants:
            if participant.due(step, TRAIN) is not None:
                return False
        opened.step = step
        self._rested += 1
        return True

    @property
    def resting(self) -> bool:
        """Whether nobody acts in the step of training that is under way or was the last, and no hook is left from another."""
        opened = self._open.get(TRAIN)
        return opened is not None and not opened.active and self._installed == () and self.stage == TRAIN

    def begin(self, step: int, *, stage: str = TRAIN, reporting: bool = False) -> None:
        """Open the gate for a batch; at the first batch of a step decide who acts and put the hooks in place.

        Args:
            step: the number of the step; in other stages than `train`, of the batch.
            stage: `train`, `validate`, `test` or `predict`.
            reporting: whether transforms report although no monitor asks them to.
        """
        if self._pauses:
            return
        opened = self._open.get(stage)
        fresh = opened is None or opened.step != step
        if fresh and stage == TRAIN:
            self._lap()
        if stage == TRAIN and self._nobody_acts(step, fresh):
            return
        with self.meter.common if stage == TRAIN else self.meter.aside:
            self._begin(step, stage, reporting)

    def _nobody_acts(self, step: int, fresh: bool) -> bool:
        """Whether nobody acts in a step of training and no hook is left from another: then there is nothing to do."""
        if self._installed != () or self.renewal.wanted:
            return False
        if not fresh:
            return not self._open[TRAIN].active
        if any(participant.due(step, TRAIN) is not None for participant in self.participants):
            return False
        self.stage = TRAIN
        self._open[TRAIN] = _Open(step, [])
        return True

    def _lap(self) -> None:
        wall, common = self.meter.lap(), self.meter.common.take()
        steps, self._rested = 1 + self._rested, 0
        for participant in self.participants:
            participant.lap(participant.account.take() + common, wall, steps)

    def _begin(self, step: int, stage: str, reporting: bool) -> None:
        self.stage = stage
        opened = self._open.get(stage)
        if opened is None or opened.step != step:
            self._renew()
            keys = [(p, p.due(step, stage)) for p in self.participants]
            called = self._called.setdefault(stage, set())  # the same set at every step: the hooks that stay write into it
            called.clear()
            opened = _Open(step, [(p, key) for p, key in keys if key is not None], called)
            self._open[stage] = opened
            if stage == TRAIN:
                self.moments.clear()
            reporting = stage == TRAIN and (reporting or any(p.reports for p, _ in opened.active))
            for participant, _ in opened.active:
                with participant.account:
                    participant.begin(step, stage, reporting)
        if opened.key != self._installed:
            self._install()
        for participant, _ in opened.active:
            participant.batch()
        self._parameters.register()
        self._open_gate()

    def suspend(self) -> None:
        """Close the gate between two batches."""
        self.gate.shut()
        self._reopen = False

    def end(self, stage: str = TRAIN) -> None:
        """End the step of a stage: close the gate, forget what only lived in it."""
        self.suspend()
        opened = self._open.pop(stage, None)
        if opened is not None and not opened.active:
            self.moments.clear()
            return
        with self.meter.common if stage == TRAIN else self.meter.aside:
            if stage == TRAIN:
                self.moments.clear()
                if opened is not None:
                    self.renewal.note(opened.key, opened.called)
            self._step_handles.close()

    def off(self) -> None:
        """Take every hook off the model until the next step begins."""
        self._handles.close()
        self._step_handles.close()
        self._installed = None

    def pause(self, paused: bool) -> None:
        """Take the hooks off, or, when the outermost pause ends, put back those of a step that is still open."""
        if paused and not self._pauses:
            self._reopen = self.gate.open
            self.gate.shut()
            self.off()
            self.compiled.close()
        self._pauses += 1 if paused else -1
        if paused or self._pauses:
            return
        self.compiled.place(self.participants)
        if self._open.get(self.stage) is not None:
            self._install()
            self._parameters.register()
            if self._reopen:
                self._open_gate()

    def close(self) -> None:
        """Take everything away; harmless the second time."""
        self.gate.shut()
        self.off()
        self.compiled.close()
        self.extras.close()
        for participant in self.participants:
            participant.left()
        self.moments.clear()
        self._open.clear()
        _LIVE.discard(self)

    def before_step(self, participant: Participant, optimizer: HasParameters) -> None:
        """Let one participant act on the gradients of an optimizer's step."""
        if self.gate.open and self.acts(participant):
            self.moments.before_step(participant, optimizer, self._actors)

    def moment(self, name: str, optimizer: HasParameters) -> None:
        """Let every active participant look at a moment: `at_final`, `before_update` or `after_update`."""
        if self.gate.open:
            self.moments.at(name, optimizer, self._actors)

    def scaled_by(self, scale: Tensor) -> None:
        """Note the loss scale of the backward that begins; what flowed before it in this step is brought to that."""
        self.moments.scaled_by(scale, self._actors)

    def take_reports(self) -> dict[str, float]:
        """The reports of all participants, for whoever writes the step first."""
        out: dict[str, float] = {}
        for participant, _ in self.active:
            for tag, value in participant.take_reports().items():
                out[tag] = out.get(tag, 0.0) + value  # only counts have a tag in common
        return out

    def _renew(self) -> None:
        if self.renewal.renew(target for participant in self.participants for target in participant.all_targets()):
            for participant in self.participants:
                participant.renewed()
            self._installed = None

    @property
    def _actors(self) -> list[Participant]:
        return [participant for participant, _ in self.active]

    def _install(self) -> None:
        self.off()
        opened = self._open.get(self.stage)
        if opened is None:
            return
        parts = [part for participant, key in opened.active for part in participant.module_parts(key)]
        if self.compiled.changed():  # by somebody's on_train_start, say
            self.compiled.place(self.participants)
        self.compiled.fill(parts, opened.called)
        for place in build_places([part for part in parts if id(part.module) not in self.compiled.inside], opened.called):
            register(place, self.gate, self._handles, self._step_handles)
        self._parameters.build(part for participant, key in opened.active for part in participant.param_parts(key))
        for participant, key in opened.active:
            participant.register(key, self.gate, self._handles)
        if any(p.needs_updates for p, _ in opened.active):
            for optimizer in self._optimizers():
                hook_updates(optimizer, self.moment, self._handles)
        self._installed = opened.key

    def _open_gate(self) -> None:
        self.gate.open = True
        self.gate.traced = self.compiled.busy


def live_dispatchers(model: nn.Module) -> list[Dispatcher]:
    """The dispatchers whose model is this one, holds it, or is held by it."""
    inside = set(map(id, model.modules()))
    return [d for d in list(_LIVE) if id(d.model) in inside or any(m is model for m in d.model.modules())]


def _close_all(*handles: Handles) -> None:
    for kept in handles:
        kept.close()
