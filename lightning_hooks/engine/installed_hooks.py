"""The hooks that are on a model, for whom they were put there, and how they come off."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import call
from typing import Any, NamedTuple
from weakref import finalize

from torch import nn
from torch.optim import Optimizer

from lightning_hooks.engine.compiled import CompiledHooks
from lightning_hooks.engine.param_hooks import ParameterHooks
from lightning_hooks.engine.participant import HasParameters, Participant
from lightning_hooks.engine.phases import hook_updates
from lightning_hooks.engine.sites import build_sites
from lightning_hooks.hooks import Gate, Handles, ModuleHooks, for_each
from lightning_hooks.hooks.handles import Removable

Active = Sequence[tuple[Participant, Hashable]]
"""Who acts in a step, with the key of what they do."""


class _Prepared(NamedTuple):
    """The hooks of a model's modules for steps of one kind; what is inside compiled code and at parameters is of the same kind.

    Args:
        key: of these steps.
        called: takes the ids of the modules that are called.
        hooks: of all modules.
    """

    key: tuple[Any, ...]
    called: set[int]
    hooks: ModuleHooks


class InstalledHooks:
    """Owns every hook and handle of a model.

    `key` tells what the hooks that are on are for; None where none is on, as between two batches. Those inside compiled code
    stay on. `run_handles` are the handles of what is no hook on the model; `final` puts on what calls the moment `at_final`.

    Args:
        model: the root module.
        gate: that the hooks ask.
        optimizers: called for the optimizers whose updates are watched; they may change during a fit.
    """

    def __init__(self, model: nn.Module, gate: Gate, optimizers: Callable[[], Sequence[Optimizer]]) -> None:
        self.key: tuple[Any, ...] | None = None
        self.run_handles = Handles()
        self.final_hook: Callable[[], Removable] | None = None
        self.look_again = False  # for modules that were compiled meanwhile
        self._gate = gate
        self._optimizers = optimizers
        # Of the kind that came last: making hooks takes several times as long as putting them on.
        self._prepared: _Prepared | None = None
        self._handles = Handles()
        self._step_handles = Handles()
        self._compiled = CompiledHooks(model, gate, self._step_handles)
        self._parameters = ParameterHooks(model, gate, self._handles, self._step_handles)
        # Knows the hooked objects weakly, as handles do: the model can be collected, and a lost hook manager leaves no hook.
        closing = [self._handles, self._step_handles, self.run_handles]
        finalizer = finalize(self, _leave_nothing, gate, closing)
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
        self.key = key  # first: what is interrupted is taken off again
        known = self._prepared
        if known is None or known.key != key or known.called is not called or self.look_again:
            self.look_again = False
            if self._compiled.changed():  # by somebody's on_train_start, say
                self.place_inside(everybody)
            known = self._prepared = self._prepare(active, called, key)
        known.hooks.put_on(self._handles)
        for participant, wanted in active:
            participant.register(wanted, self._gate, self._handles)
        if any(participant.needs_updates for participant, _ in active):
            for optimizer in self._optimizers():
                hook_updates(optimizer, moment, self._handles)
        if self.final_hook is not None:
            self._handles.keep(self.final_hook())

    def _prepare(self, active: Active, called: set[int], key: tuple[Any, ...]) -> _Prepared:
        parts = [part for participant, wanted in active for part in participant.module_parts(wanted)]
        self._compiled.fill(parts, called)
        self._parameters.build(part for participant, wanted in active for part in participant.param_parts(wanted))
        places = build_sites([part for part in parts if id(part.module) not in self._compiled.inside], called)
        return _Prepared(key, called, ModuleHooks(places, self._gate, self._step_handles))

    def forget(self) -> None:
        """Take the hooks off and rebuild them at the next step: the participants or their targets have changed."""
        self.off()
        self._prepared = None

    def compiled_anew(self) -> bool:
        """Whether a module was compiled, or is no longer, since hooks were placed in compiled code."""
        return self._compiled.changed()

    def place_inside(self, everybody: Sequence[Participant]) -> None:
        """Put hooks inside compiled code wherever anybody ever acts there."""
        self._prepared = None
        self._compiled.place(everybody)

    def begin_batch(self) -> None:
        """Hook parameters that can only now be hooked, and open the gate."""
        if self._parameters.chains:
            self._parameters.register()
        self._gate.open = True
        self._gate.traced = self._compiled.busy

    def end_step(self) -> None:
        """Take off what only one step needs, where the other hooks stay."""
        self._step_handles.close()

    def off(self) -> None:
        """Take everything off but what is inside compiled code, and the run_handles."""
        for_each(call, [self._handles.close, self._step_handles.close])
        self.key = None  # only now: what was interrupted is done again

    def off_inside(self) -> None:
        """Take off what is inside compiled code."""
        self._compiled.close()


def _leave_nothing(gate: Gate, handles: list[Handles]) -> None:
    gate.shut()
    for_each(call, [kept.close for kept in handles])
