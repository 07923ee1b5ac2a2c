"""The hooks on a model: created for the participants of a step, registered for a batch, removed after the batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from operator import call
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakMethod, finalize

from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from lightning_hooks.engine.participants.actions import in_order
from lightning_hooks.engine.participants.compiled import CompiledHooks, refuse_compiled, refuse_traced
from lightning_hooks.engine.participants.participant import Active, Participant
from lightning_hooks.engine.participants.phases import RunPhase, UpdateHooks
from lightning_hooks.engine.running.acting import Acting
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.hooks import (
    Action,
    GradHook,
    Handles,
    HookSwitch,
    ModuleHooks,
    OurHook,
    StackRoom,
    for_each,
    joined,
    may_have_gradient,
    traces,
    unfrozen,
)
from lightning_hooks.tensor_kinds import without_subclass

InstallFinal: TypeAlias = Callable[[Handles, Callable[[], RunPhase | None]], None]
"""Installs a wrapper that runs the phase `final`, and passes it to the handles. The second argument is a weak reference to
`HookManager.phase`."""
GradHooks: TypeAlias = dict[int, tuple[nn.Parameter, GradHook]]
"""Parameters with the hooks on their gradients, by the id of the parameter."""

# The number of kinds of steps whose hooks are cached. Kinds take turns, because stages alternate and rules have intervals of
# their own.
_CACHED: Final = 4


class _StepHooks(NamedTuple):
    """The hooks that steps of some kinds need. They are cached, because creating them takes longer than registering them.

    Args:
        hooked: the participants that decide which hooks there are, each with its key.
        called: takes the ids of the modules that are called.
        hooks: the hooks on modules outside compiled code.
        inside: the actions at modules inside compiled code.
        at_parameters: the hooks on gradients of parameters.
    """

    hooked: Active
    called: set[int]
    hooks: ModuleHooks
    inside: list[Action]
    at_parameters: GradHooks

    def is_for(self, acting: Acting, called: set[int]) -> bool:
        return self.hooked == acting.hooked and self.called is called


class InstalledHooks:
    """Every hook and handle on a model. Handles live while hooks are installed, or for a step; `run_handles` live for the run.

    Hooks inside compiled code stay installed between batches.

    Args:
        model: the root module.
        switch: the switch that the hooks read.
        optimizers: returns the optimizers whose updates are watched; they may change during a fit.
        phase: `HookManager.phase`, held by a weak reference.

    Attributes:
        active: the participants for which hooks are installed; None between batches.
        compiled_unchecked: whether modules may have been compiled since the last check, for example in a step in which no
            participant acts.
    """

    def __init__(
        self,
        model: nn.Module,
        switch: HookSwitch,
        optimizers: Callable[[], Sequence[Optimizer]],
        phase: RunPhase,
    ) -> None:
        self.active: Active | None = None
        self.compiled_unchecked = False
        self.run_handles = Handles()
        self._switch = switch
        self._optimizers = optimizers
        self._phase = WeakMethod(phase)
        self._updates = UpdateHooks(self._phase, switch)
        self._hook_handles = Handles()
        self._step_handles = Handles()
        self._room = StackRoom(model)
        self._compiled = CompiledHooks(model, switch, self._step_handles)
        self._parameters = _ParameterHooks(model, switch, self._hook_handles, self._step_handles)
        self._cached: list[_StepHooks] = []  # most recently used first
        self._traces = 0  # the value of `traces.count()` when the current hooks were installed
        self._warned: set[str] = set()
        # If the object is garbage-collected, the finalizer removes the hooks. Handles refer to the hooked objects weakly, so
        # the finalizer does not keep the model alive.
        finalizer = finalize(self, _remove_all, switch, [self._hook_handles, self._step_handles, self.run_handles])
        finalizer.atexit = False

    def install(
        self, acting: Acting, called: set[int], participants: Sequence[Participant], install_final: InstallFinal | None
    ) -> None:
        """Install the hooks of a step, in place of those of another step.

        Args:
            acting: the participants that act in the step.
            called: takes the ids of the modules that are called.
            participants: all participants, also those that act in other steps: hooks inside compiled code serve all of them.
            install_final: None if no participant acts in the phase `final`.
        """
        active = acting.active
        if self.active == active and self._cached and self._cached[0].is_for(acting, called):
            return
        self.remove()
        self._traces = traces.count()
        # Set `active` before registering anything: if Ctrl-C arrives in between, end_batch() still removes the hooks.
        self.active = active
        # Look for newly compiled modules, which need hooks inside their code, also before the first step: another callback may
        # have compiled a module since the fit began, for example in on_train_start.
        if self.compiled_unchecked or not self._cached:
            self.check_compiled(participants)
        self._use(acting, called)
        self._room.make(self._hook_handles)
        self._cached[0].hooks.register(self._hook_handles)
        for participant, key in acting.registering:
            participant.register(key, self._switch, self._hook_handles)
        if acting.reads_updates or acting.acts_before:
            for optimizer in self._optimizers():
                self._hook_updates(optimizer, warns=acting.reads_updates)
        if install_final is not None:
            install_final(self._hook_handles, self._phase)

    def _hook_updates(self, optimizer: Optimizer, *, warns: bool) -> None:
        try:
            self._updates.register(optimizer, self._hook_handles)
        except UnsupportedError as error:
            if warns and str(error) not in self._warned:
                self._warned.add(str(error))
                warnings.warn(f"'update' and 'state' have no rows: {error}", stacklevel=2)

    def _use(self, acting: Acting, called: set[int]) -> None:
        """Move the hooks of a kind of steps to the front of the cache; create them if they are not cached."""
        hooks = next((each for each in self._cached if each.is_for(acting, called)), None)
        if hooks is None:
            hooks = self._create(acting.hooked, called)
        elif hooks is self._cached[0]:
            return
        self._cached = [hooks, *(each for each in self._cached if each is not hooks)][:_CACHED]
        self._compiled.fill(hooks.inside, called)
        self._parameters.hooks = hooks.at_parameters

    def _create(self, hooked: Active, called: set[int]) -> _StepHooks:
        actions = in_order(action for participant, key in hooked for action in participant.actions(key))
        at_modules = [action for action in actions if action.tensor != "grad"]
        inside = [action for action in at_modules if id(action.owner) in self._compiled.inside]
        outside = [action for action in at_modules if id(action.owner) not in self._compiled.inside]
        hooks = ModuleHooks(outside, called, self._switch, self._step_handles)
        at_parameters = _grad_hooks((action for action in actions if action.tensor == "grad"), self._switch)
        return _StepHooks(hooked, called, hooks, inside, at_parameters)

    def refuse_traced(self) -> None:
        """Refuse rules whose hooks were traced in this batch, as part of code that was not recognised as compiled."""
        if self._traces == traces.count() or not self._cached:
            return
        self._traces = traces.count()
        hooks = self._cached[0]
        refuse_traced((rule for participant, key in hooks.hooked for rule in participant.module_rules(key)), hooks.called)

    def turn_on(self, announced: bool) -> None:
        """Hook parameters that could not be hooked before, and turn hooks on.

        Args:
            announced: whether `note_backward` will be called around the backward of the loss.
        """
        self._parameters.register()
        self._switch.is_on = True
        self._compiled.turn_on(announced)

    def note_backward(self, begins: bool) -> None:
        """Called when the backward of the loss begins, and when it has ended."""
        self._compiled.note_backward(begins)

    def end_step(self) -> None:
        """Remove the hooks that only one step needs; the other hooks stay."""
        self._step_handles.close()

    def remove(self) -> None:
        """Remove all hooks but those inside compiled code and the `run_handles`."""
        for_each(call, [self._hook_handles.close, self._step_handles.close])
        # Reset `active` after removing: if Ctrl-C arrives in between, the next call removes the rest.
        self.active = None

    def discard(self) -> None:
        """Remove the hooks and clear the cache, because the participants or their targets have changed."""
        self.remove()
        self._cached = []

    def install_compiled(self, participants: Sequence[Participant]) -> None:
        """Install hooks inside compiled code for everything that a participant may do there. Call it before the first trace."""
        self._cached = []
        self._compiled.install(participants)
        # Check the rules again: a module may have been compiled after the check at the start of the run.
        for participant in participants:
            for rule in participant.module_rules() if self._compiled.inside else ():
                refuse_compiled(self._compiled.inside, rule)

    def check_compiled(self, participants: Sequence[Participant]) -> None:
        """Install the hooks inside compiled code again if other modules are compiled than before."""
        self.compiled_unchecked = False
        if self._compiled.changed():
            self.install_compiled(participants)

    def remove_compiled(self) -> None:
        self._compiled.close()


class _ParameterHooks(OurHook):
    """The hooks on gradients of parameters: one for each parameter, registered as soon as the parameter can have a hook.

    The object itself is the forward hook of lazy modules, whose parameters have no shape before their first forward pass.
    """

    def __init__(self, model: nn.Module, switch: HookSwitch, handles: Handles, step_handles: Handles) -> None:
        self.switch = switch
        self._model = model
        self._handles = handles
        self._step_handles = step_handles  # for the hooks on lazy modules
        self.hooks: GradHooks = {}

    def register(self) -> None:
        """Hook the parameters that have no hook yet. Frozen parameters are hooked too: a training step may unfreeze them."""
        lazy = False
        for key, (parameter, hook) in self.hooks.items():
            if isinstance(parameter, UninitializedParameter):
                lazy = True
            elif ("param", key) not in self._handles and may_have_gradient(parameter):
                with without_subclass(), unfrozen(parameter, self._handles):
                    self._handles.register(parameter.register_hook, hook, key=("param", key))
        if lazy:
            for module in self._model.modules():
                if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
                    self._step_handles.register(module.register_forward_hook, self)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.switch.is_on:
            self.register()


def _grad_hooks(actions: Iterable[Action], switch: HookSwitch) -> GradHooks:
    """One hook for each parameter, which runs the actions of the parameter in order."""
    groups: dict[int, tuple[nn.Parameter, list[Action]]] = {}
    for action in actions:
        # Do not test for `nn.Parameter`: a parameter from torch.jit.load is a plain Tensor.
        assert isinstance(action.owner, Tensor)
        groups.setdefault(id(action.owner), (action.owner, []))[1].append(action)
    return {key: (parameter, GradHook(joined(group), switch)) for key, (parameter, group) in groups.items()}


def _remove_all(switch: HookSwitch, handles: list[Handles]) -> None:
    switch.turn_off()
    for_each(call, [kept.close for kept in handles])
