"""One dispatcher per model: one hook per place, participants in order, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol
from weakref import WeakSet, finalize, ref

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.chain import Chain, Part
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.taps import Gate, GradHook, Handles, Hook, Line, Place, register

ModulePart = tuple[nn.Module, str, str, Part]
_LIVE: WeakSet[Dispatcher] = WeakSet()  # for `paused`, which is given a model only; keeps nothing alive
_READ_AT = {"at_final": "final_grad", "after_update": "update"}
_CHANGEABLE = ("input_grad", "output_grad")


class HasParameters(Protocol):
    """An optimizer, or what stands for one where there is none."""

    param_groups: list[dict[str, Any]]


class Participant:
    """One monitor or one set of transforms; what the dispatcher asks of it."""

    order: tuple[int, ...] = (0,)
    reports: bool = False

    def due(self, step: int) -> Hashable | None:
        """A key that says what it does at a step (the same key, the same hooks), or None for nothing."""
        raise NotImplementedError

    def module_parts(self, key: Any) -> Iterable[ModulePart]:
        """What it does at modules: module, tensor, path, part."""
        return ()

    def param_parts(self, key: Any) -> Iterable[tuple[nn.Parameter, Part]]:
        """What it does to the gradients of parameters as backward makes them."""
        return ()

    def begin(self, step: int, reporting: bool) -> None:
        """Called when a step that is due begins."""

    def before_step(self, optimizer: HasParameters, memo: Memo) -> None:
        """Called with accumulated, unscaled, averaged gradients."""

    def at_final(self, optimizer: HasParameters, memo: Memo) -> None:
        """Called with the gradients that the optimizer will consume."""

    def before_update(self, optimizer: HasParameters, memo: Memo) -> None:
        """Called before the optimizer changes the parameters."""

    def after_update(self, optimizer: HasParameters, memo: Memo) -> None:
        """Called after the optimizer changed the parameters."""

    def take_reports(self) -> dict[str, float]:
        """What it did in the step that ends, tag to value; asked for once."""
        return {}

    @property
    def needs_updates(self) -> bool:
        """Whether it wants `before_update` and `after_update`."""
        return False


class Memo:
    """Measurements and copies that several participants share within one moment of a step."""

    def __init__(self) -> None:
        self.looks: dict[tuple[int, str], Measurement] = {}
        self.before: dict[int, Tensor] = {}
        self.readers: set[int] = set()

    def forget(self, tensor: str) -> None:
        """Drop what was measured of a tensor, because it changed."""
        self.looks = {key: look for key, look in self.looks.items() if key[1] != tensor}


class Dispatcher:
    """Joins the participants of one model and owns every handle.

    Args:
        model: the root module.
        optimizers: called for the optimizers whose updates are watched; they may change during a fit.
    """

    def __init__(self, model: nn.Module, optimizers: Callable[[], Sequence[Optimizer]] = tuple) -> None:
        self.model = model
        self.gate = Gate()
        self.participants: list[Participant] = []
        self.active: list[tuple[Participant, Hashable]] = []
        self.step: int | None = None
        self.places: dict[int, Place] = {}
        self.extras = Handles()
        self.scale: Tensor | None = None
        self._optimizers = optimizers
        self._handles = Handles()
        self._step_handles = Handles()
        self._memos: dict[int, Memo] = {}
        self._installed: tuple[Any, ...] | None = None
        self._param_chains: dict[int, tuple[nn.Parameter, list[Part]]] = {}
        self._paused = self._reopen = False
        # Handles know the hooked objects weakly, so the model can be collected, and a lost dispatcher leaves no hook.
        finalizer = finalize(self, _close_all, self._handles, self._step_handles, self.extras)
        finalizer.atexit = False

    def join(self, participant: Participant) -> None:
        """Take a participant in, at its place in the order."""
        self.participants = sorted([*self.participants, participant], key=lambda p: p.order)
        self._installed = None
        _LIVE.add(self)

    def leave(self, participant: Participant) -> None:
        """Let a participant go; the others keep their hooks. The last one turns out the lights."""
        self.participants = [p for p in self.participants if p is not participant]
        self.active = [(p, key) for p, key in self.active if p is not participant]
        if not self.participants:
            self.close()
        elif self._installed is not None:
            self._install()

    def begin(self, step: int, *, reporting: bool = False) -> None:
        """Open the gate for a batch; at the first batch of a step decide who watches and put the hooks in place.

        Args:
            step: the number of the step.
            reporting: whether transforms report although no monitor asks them to.
        """
        if self._paused:
            return
        if self.step != step:
            self.step = step
            self._memos.clear()
            keys = [(p, p.due(step)) for p in self.participants]
            self.active = [(p, key) for p, key in keys if key is not None]
            reporting = reporting or any(p.reports for p, _ in self.active)
            for participant, _ in self.active:
                participant.begin(step, reporting)
            wanted = tuple((id(p), key) for p, key in self.active)
            if wanted != self._installed:
                self._install()
            for place in self.places.values():
                place.called = False
        self._hook_parameters()
        self.gate.open = True

    def suspend(self) -> None:
        """Close the gate between two batches."""
        self.gate.open = False

    def end(self) -> None:
        """End the step: close the gate, forget what only lived in it."""
        self.gate.open = False
        self.step = None
        self._memos.clear()
        self._step_handles.close()

    def off(self) -> None:
        """Take every hook off the model until the next step begins."""
        self._handles.close()
        self._step_handles.close()
        self._installed = None

    def pause(self, paused: bool) -> None:
        """Take the hooks off, or let the next step put them back."""
        if paused and not self._paused:
            self._reopen = self.gate.open
            self.gate.open = False
            self.off()
        self._paused = paused
        if not paused and self.step is not None:
            self._install()
            self._hook_parameters()
            self.gate.open = self._reopen

    def close(self) -> None:
        """Take everything away; harmless the second time."""
        self.gate.open = False
        self.off()
        self.extras.close()
        self._memos.clear()
        self.places.clear()
        self.active = []
        self.step = None
        _LIVE.discard(self)

    def before_step(self, participant: Participant, optimizer: HasParameters) -> None:
        """Let one participant act on the gradients of an optimizer's step."""
        if self.gate.open and any(p is participant for p, _ in self.active):
            memo = self._memo(optimizer)
            if id(participant) in memo.readers:  # LBFGS runs its closure again: what was read before is old
                memo.readers.clear()
                memo.looks.clear()
            memo.readers.add(id(participant))
            participant.before_step(optimizer, memo)

    def moment(self, name: str, optimizer: HasParameters) -> None:
        """Let every active participant look at a moment: `at_final`, `before_update` or `after_update`."""
        if self.gate.open:
            memo = self._memo(optimizer)
            memo.forget(_READ_AT.get(name, ""))
            if name == "before_update":
                memo.before.clear()
            for participant, _ in list(self.active):
                getattr(participant, name)(optimizer, memo)

    def take_reports(self) -> dict[str, float]:
        """The reports of all participants, for whoever writes the step first."""
        return {tag: value for p, _ in self.active for tag, value in p.take_reports().items()}

    def _memo(self, optimizer: HasParameters) -> Memo:
        return self._memos.setdefault(id(optimizer), Memo())

    def _install(self) -> None:
        self.off()
        self.places = {}
        for place in self._build_places():
            register(place, self.gate, self._handles, self._step_handles)
        self._param_chains = {}
        for participant, key in self.active:
            for parameter, part in participant.param_parts(key):
                self._param_chains.setdefault(id(parameter), (parameter, []))[1].append(part)
        if any(p.needs_updates for p, _ in self.active):
            for optimizer in self._optimizers():
                self._handles.keep(optimizer.register_step_pre_hook(_UpdateHook(self, "before_update")))
                self._handles.keep(optimizer.register_step_post_hook(_UpdateHook(self, "after_update")))
        self._installed = tuple((id(p), key) for p, key in self.active)

    def _hook_parameters(self) -> None:
        # A frozen parameter refuses a hook, so it gets its own when it is unfrozen.
        for key, (parameter, parts) in self._param_chains.items():
            if parameter.requires_grad and ("param", key) not in self._handles:
                self._handles.keep(parameter.register_hook(GradHook([Chain(parts)], self.gate)), key=("param", key))

    def _build_places(self) -> Iterator[Place]:
        chains: dict[tuple[int, str], list[tuple[str, list[Part]]]] = {}
        for participant, key in self.active:
            for module, tensor, path, part in participant.module_parts(key):
                self.places.setdefault(id(module), Place(module))
                lines = chains.setdefault((id(module), tensor), [])
                # Where a gradient may change, only neighbours in the order may share a line.
                candidates = lines[-1:] if tensor in _CHANGEABLE else lines
                line = next((parts for known, parts in candidates if known == path), None)
                if line is None:
                    line = []
                    lines.append((path, line))
                line.append(part)
        for (module_id, tensor), lines in chains.items():
            visitors = [Chain(parts) for _, parts in lines]
            placed = [Line(path, chain, chain.changes) for (path, _), chain in zip(lines, visitors, strict=True)]
            setattr(self.places[module_id], tensor, placed)
        yield from self.places.values()


def live_dispatchers(model: nn.Module) -> list[Dispatcher]:
    """The dispatchers whose model is this one, holds it, or is held by it."""
    inside = set(map(id, model.modules()))
    return [d for d in list(_LIVE) if id(d.model) in inside or any(m is model for m in d.model.modules())]


def _close_all(*handles: Handles) -> None:
    for kept in handles:
        kept.close()


class _UpdateHook(Hook):
    def __init__(self, dispatcher: Dispatcher, moment: str) -> None:
        self.dispatcher = ref(dispatcher)
        self.moment = moment

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        dispatcher = self.dispatcher()
        if dispatcher is not None:
            dispatcher.moment(self.moment, optimizer)
