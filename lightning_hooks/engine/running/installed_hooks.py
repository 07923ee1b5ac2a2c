"""The hooks that are on a model: made for the participants of a step, installed for a batch, removed after it."""

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
from lightning_hooks.engine.participants.phases import RunPhase, hook_updates
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
"""Gives the handles what is installed, and installs it: a wrapper that runs the phase `final` by the hook manager's `phase`,
which is known weakly."""
GradHooks: TypeAlias = dict[int, tuple[nn.Parameter, GradHook]]
"""Parameters with the hooks on their gradients, by the id of the parameter."""

_KEPT: Final = 4  # kinds of steps whose hooks are kept: rules with intervals of their own, and stages, take turns


class _Made(NamedTuple):
    """What steps of one kind need, kept while hooks come and go: making them takes longer than installing.

    Args:
        active: who acts in such a step.
        called: takes the ids of the modules that are called.
        hooks: on modules outside compiled code.
        inside: the actions at modules inside it.
        at_parameters: hooks on gradients of parameters.
    """

    active: Active
    called: set[int]
    hooks: ModuleHooks
    inside: list[Action]
    at_parameters: GradHooks

    def is_for(self, active: Active, called: set[int]) -> bool:
        return self.active == active and self.called is called


class InstalledHooks:
    """Every hook and handle on a model. Handles live while hooks are installed, or for a step; `run_handles` live for the run.

    `active` is for whom hooks are installed; None between batches. Hooks inside compiled code stay installed;
    `compiled_unchecked` says that modules may have been compiled since, as in a step in which no participant acts.

    Args:
        model: the root module.
        switch: that the hooks read.
        optimizers: called for the optimizers whose updates are watched; they may change during a fit.
        phase: a bound method, known weakly.
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
        self._hook_handles = Handles()
        self._step_handles = Handles()
        self._room = StackRoom(model)
        self._compiled = CompiledHooks(model, switch, self._step_handles)
        self._parameters = _ParameterHooks(model, switch, self._hook_handles, self._step_handles)
        self._made: list[_Made] = []  # the last one used comes first
        self._traces = 0  # how many hooks had been traced when these were installed
        self._said: set[str] = set()
        # Handles know the hooked objects weakly: the model can be collected, and a lost hook manager leaves no hook.
        finalizer = finalize(self, _remove_all, switch, [self._hook_handles, self._step_handles, self.run_handles])
        finalizer.atexit = False

    def install(
        self, active: Active, called: set[int], participants: Sequence[Participant], install_final: InstallFinal | None
    ) -> None:
        """Install the hooks of a step instead of those that are installed; nothing where those are the same.

        Args:
            active: who acts in it.
            called: takes the ids of the modules that are called.
            participants: who may act in any step: hooks inside compiled code are theirs.
            install_final: None if nothing needs the phase `final`.
        """
        if self.active is not None and self._made and self._made[0].is_for(active, called):
            return
        self.remove()
        self._traces = traces.count()
        self.active = active  # first: an interrupted installation is undone
        if self.compiled_unchecked or not self._made:
            self.check_compiled(participants)  # another callback's on_train_start, for example, may have compiled a module
        self._use(active, called)
        self._room.make(self._hook_handles)
        self._made[0].hooks.put_on(self._hook_handles)
        for participant, key in active:
            participant.register(key, self._switch, self._hook_handles)
        reads = any(participant.reads_updates for participant, _ in active)
        if reads or any(participant.acts_before for participant, _ in active):
            for optimizer in self._optimizers():
                self._hook_updates(optimizer, warns=reads)
        if install_final is not None:
            install_final(self._hook_handles, self._phase)

    def _hook_updates(self, optimizer: Optimizer, *, warns: bool) -> None:
        try:
            hook_updates(optimizer, self._phase, self._switch, self._hook_handles)
        except UnsupportedError as error:
            if warns and str(error) not in self._said:
                self._said.add(str(error))
                warnings.warn(f"'update' and 'state' have no rows: {error}", stacklevel=2)

    def _use(self, active: Active, called: set[int]) -> None:
        """Put what steps of a kind need first among what is kept, and make it where it is not."""
        made = next((each for each in self._made if each.is_for(active, called)), None)
        if made is None:
            made = self._make(active, called)
        elif made is self._made[0]:
            return
        self._made = [made, *(each for each in self._made if each is not made)][:_KEPT]
        self._compiled.fill(made.inside, called)
        self._parameters.hooks = made.at_parameters

    def _make(self, active: Active, called: set[int]) -> _Made:
        actions = in_order(action for participant, key in active for action in participant.actions(key))
        at_modules = [action for action in actions if action.tensor != "grad"]
        inside = [action for action in at_modules if id(action.owner) in self._compiled.inside]
        outside = [action for action in at_modules if id(action.owner) not in self._compiled.inside]
        hooks = ModuleHooks(outside, called, self._switch, self._step_handles)
        at_parameters = _grad_hooks((action for action in actions if action.tensor == "grad"), self._switch)
        return _Made(active, called, hooks, inside, at_parameters)

    def refuse_traced(self) -> None:
        """Refuse rules whose hooks were traced since they were installed, as part of code that nothing says is compiled."""
        if self._traces == traces.count() or not self._made:
            return
        self._traces = traces.count()
        made = self._made[0]
        refuse_traced((rule for participant, key in made.active for rule in participant.module_rules(key)), made.called)

    def turn_on(self) -> None:
        """Hook parameters that can only now be hooked, and open the switch."""
        self._parameters.register()
        self._switch.is_on = True
        self._switch.traced = self._compiled.busy

    def end_step(self) -> None:
        """Remove what only one step needs, where the other hooks stay."""
        self._step_handles.close()

    def remove(self) -> None:
        """Remove all hooks but those inside compiled code and the `run_handles`."""
        for_each(call, [self._hook_handles.close, self._step_handles.close])
        self.active = None  # only now: an interrupted removal is repeated

    def discard(self) -> None:
        """Remove the hooks, and make others at the next step: the participants or their targets have changed."""
        self.remove()
        self._made = []

    def install_compiled(self, participants: Sequence[Participant]) -> None:
        """Install hooks inside compiled code for everything that a participant may do there; before the first trace."""
        self._made = []
        self._compiled.install(participants)
        for participant in participants:  # a rule that is refused here was not inside compiled code when the run began
            for rule in participant.module_rules() if self._compiled.inside else ():
                refuse_compiled(self._compiled.inside, rule)

    def check_compiled(self, participants: Sequence[Participant]) -> None:
        """Install them again if a module was compiled, or no longer is, since the last time."""
        self.compiled_unchecked = False
        if self._compiled.changed():
            self.install_compiled(participants)

    def remove_compiled(self) -> None:
        self._compiled.close()


class _ParameterHooks(OurHook):
    """The hooks that are given gradients as backward makes them: one for each parameter, as soon as it can carry one.

    It is itself the hook of a lazy module, which makes its parameters in its first forward pass.
    """

    def __init__(self, model: nn.Module, switch: HookSwitch, handles: Handles, step_handles: Handles) -> None:
        self.switch = switch
        self._model = model
        self._handles = handles
        self._step_handles = step_handles  # for hooks on modules whose parameters have no shape yet
        self.hooks: GradHooks = {}

    def register(self) -> None:
        """Hook the parameters that have no hook yet, frozen ones too: a training step may unfreeze them."""
        lazy = False
        for key, (parameter, hook) in self.hooks.items():
            if isinstance(parameter, UninitializedParameter):
                lazy = True
            elif ("param", key) not in self._handles and may_have_gradient(parameter):
                with without_subclass(), unfrozen(parameter, self._handles):
                    self._handles.register(parameter.register_hook, hook, key=("param", key))
        if lazy:  # it gets its shape in the forward pass, when its module is called
            for module in self._model.modules():
                if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
                    self._step_handles.register(module.register_forward_hook, self)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.switch.is_on:
            self.register()


def _grad_hooks(actions: Iterable[Action], switch: HookSwitch) -> GradHooks:
    """One hook for each parameter, with its actions in their order."""
    groups: dict[int, tuple[nn.Parameter, list[Action]]] = {}
    for action in actions:
        assert isinstance(action.owner, Tensor)  # those of torch.jit.load are no `nn.Parameter`
        groups.setdefault(id(action.owner), (action.owner, []))[1].append(action)
    return {key: (parameter, GradHook(joined(own), switch)) for key, (parameter, own) in groups.items()}


def _remove_all(switch: HookSwitch, handles: list[Handles]) -> None:
    switch.turn_off()
    for_each(call, [kept.close for kept in handles])
