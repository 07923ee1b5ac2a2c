"""The hooks that are on a model, for whom they were put there, and how they come off."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import call
from typing import Any, NamedTuple
from weakref import ReferenceType, finalize

from torch import nn
from torch.optim import Optimizer

from lightning_hooks.engine.compiled import CompiledTaps
from lightning_hooks.engine.moments import hook_updates
from lightning_hooks.engine.param_hooks import ParameterHooks
from lightning_hooks.engine.participant import HasParameters, Participant
from lightning_hooks.engine.places import build_places
from lightning_hooks.taps import Gate, Handles, ModuleHooks, asked_for_hooks, for_each, take_off_lost

Active = Sequence[tuple[Participant, Hashable]]
"""Who acts in a step, with the key of what they do."""


class _Prepared(NamedTuple):
    """The hooks of a model's modules for steps of one kind.

    Args:
        key: of these steps.
        called: takes the ids of the modules that are called.
        hooks: of all modules.
    """

    key: tuple[Any, ...]
    called: set[int]
    hooks: ModuleHooks


class Installed:
    """Owns every hook and handle of a model.

    `key` tells what the hooks are for: they stay from step to step as long as it is the same, and are put anew where it is
    None. `extras` are the handles of what stays longer.

    Args:
        model: the root module.
        gate: that the hooks ask.
        optimizers: called for the optimizers whose updates are watched; they may change during a fit.
    """

    def __init__(self, model: nn.Module, gate: Gate, optimizers: Callable[[], Sequence[Optimizer]]) -> None:
        self.key: tuple[Any, ...] | None = None
        self.extras = Handles()
        self._gate = gate
        self._optimizers = optimizers
        # Of the kind that came last: making hooks takes several times as long as putting them on.
        self._prepared: _Prepared | None = None
        self._placed: ModuleHooks | None = None  # those that are on the model
        self._handles = Handles()
        self._step_handles = Handles()
        self._compiled = CompiledTaps(model, gate, self._step_handles)
        self._parameters = ParameterHooks(model, gate, self._handles, self._step_handles)
        self._reached: list[ReferenceType[nn.Module]] = []  # the modules of `_placed`
        # Knows the hooked objects weakly, as handles do: the model can be collected, and a lost dispatcher leaves no hook.
        closing = [self._handles, self._step_handles, self.extras]
        finalizer = finalize(self, _leave_nothing, self._reached, gate, closing)
        finalizer.atexit = False

    def put(
        self,
        active: Active,
        called: set[int],
        key: tuple[Any, ...],
        everybody: Sequence[Participant],
        moment: Callable[[str, HasParameters], None],
    ) -> None:
        """Put the hooks of a step in the place of those that are there.

        Args:
            active: who acts in it.
            called: takes the ids of the modules that are called.
            key: of the step.
            everybody: who may act in any step: hooks inside compiled code are theirs.
            moment: a bound method, known weakly; called around an optimizer's step with the moment's name and the optimizer.
        """
        self.off()
        if (active or self._prepared is None) and self._compiled.changed():  # by somebody's on_train_start, say
            self.place_inside(everybody)
        self._placed = self._hooks_for(active, called, key)
        self._reached[:] = self._placed.modules
        self._placed.put_on(self._handles)
        self._parameters.build(part for participant, wanted in active for part in participant.param_parts(wanted))
        for participant, wanted in active:
            participant.register(wanted, self._gate, self._handles)
        if any(participant.needs_updates for participant, _ in active):
            for optimizer in self._optimizers():
                hook_updates(optimizer, moment, self._handles)
        self.key = key

    def _hooks_for(self, active: Active, called: set[int], key: tuple[Any, ...]) -> ModuleHooks:
        known = self._prepared
        if known is not None and known.key == key and known.called is called:
            return known.hooks
        parts = [part for participant, wanted in active for part in participant.module_parts(wanted)]
        self._compiled.fill(parts, called)
        places = build_places([part for part in parts if id(part.module) not in self._compiled.inside], called)
        hooks = ModuleHooks(places, self._gate, self._step_handles, asked_for_hooks(self._compiled.model))
        if active and not self._compiled.inside:  # what happens inside compiled code must be filled in each time
            self._prepared = _Prepared(key, called, hooks)
        return hooks

    def forget(self) -> None:
        """Make the hooks anew before they are put on again: who takes part has changed, or what the rules mean."""
        self.key = self._prepared = None

    def compiled_anew(self) -> bool:
        """Whether a module was compiled, or is no longer, since hooks were placed in compiled code."""
        return self._compiled.changed()

    def place_inside(self, everybody: Sequence[Participant]) -> None:
        """Put hooks inside compiled code wherever anybody ever acts there."""
        self._prepared = None
        self._compiled.place(everybody)

    def begin_batch(self, *, opening: bool = True) -> None:
        """Hook parameters that can only now be hooked, and open the gate.

        Args:
            opening: whether to open it.
        """
        if self._parameters.chains:
            self._parameters.register()
        if opening:
            self._gate.open = True
            self._gate.traced = self._compiled.busy

    def end_step(self) -> None:
        """Take off what only one step needs."""
        self._step_handles.close()

    def off(self) -> None:
        """Take everything off but what is inside compiled code, and the extras."""
        self.key = None
        for_each(call, [self._take_off_placed, self._handles.close, self._step_handles.close])

    def _take_off_placed(self) -> None:
        if self._placed is not None:
            self._placed.take_off()
        self._placed = None  # only now: what was interrupted is done again
        self._reached.clear()

    def off_inside(self) -> None:
        """Take off what is inside compiled code."""
        self._compiled.close()


def _leave_nothing(modules: list[ReferenceType[nn.Module]], gate: Gate, handles: list[Handles]) -> None:
    gate.shut()
    for_each(call, [lambda: take_off_lost(modules, gate), *(kept.close for kept in handles)])
