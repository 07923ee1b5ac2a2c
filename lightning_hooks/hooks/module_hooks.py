"""The hooks on the modules of a model for steps of one kind: created once, registered and removed at every batch.

There may be thousands of hooks, so they are registered again and removed in one loop, without a call for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

from torch import nn
from torch.utils.hooks import RemovableHandle

from lightning_hooks.hooks.action import Action, ModuleActions, by_module
from lightning_hooks.hooks.eager import EagerHooks, ForwardHook, PreHook, WholeHook
from lightning_hooks.hooks.gradients import GradHook, OutputGradients
from lightning_hooks.hooks.handles import Handles, Places
from lightning_hooks.hooks.plain import IS_BUILT, GradReader, PlainHook, PlainPreHook, choose_tensor_hooks, fall_back
from lightning_hooks.hooks.switch import BackwardPass, HookSwitch


class ModuleHooks:
    """The hooks of modules outside compiled code.

    Args:
        actions: the actions at modules; those on the same tensor in the order in which they run.
        called: takes the ids of the modules that are called.
        switch: the switch that the hooks read.
        step_handles: removes hooks and state that must not outlive a step; closed when the step ends or the hooks are removed.

    Example:
        >>> layer, outputs, handles = nn.Linear(1, 1), [], Handles()
        >>> hooks = ModuleHooks([Action(layer, "output", outputs.append)], set(), HookSwitch(), Handles())
        >>> hooks.register(handles); len(layer._forward_hooks)
        1
        >>> handles.close(); len(layer._forward_hooks)
        0
    """

    def __init__(self, actions: Iterable[Action], called: set[int], switch: HookSwitch, step_handles: Handles) -> None:
        choose_tensor_hooks()
        gradients = OutputGradients(step_handles)
        fallback = partial(fall_back, gradients, switch)
        self._hooks: list[_Hook] = []
        self._places = Places()
        for at_module in by_module(actions, called):
            # Hold modules by weak references: the finalizer of the hook manager must not keep the model alive.
            module = ref(at_module.module)
            is_plain = at_module.is_plain and (IS_BUILT or not at_module.acts_after)
            if at_module.acts_before or not is_plain:
                hooks = EagerHooks(at_module, switch, step_handles, gradients)
                self._hooks += [_pre_hook(module, hooks)] if at_module.acts_before else []
                self._hooks += [] if is_plain else [_Hook(module, ForwardHook(hooks), with_kwargs=True)]
            if is_plain:
                self._hooks += [_plain_hook(module, hook) for hook in _plain(at_module, switch, fallback)]

    def register(self, handles: Handles) -> None:
        """Register the hooks; closing `handles` removes them."""
        # Keep the places before registering the hooks: if Ctrl-C arrives in between, close() still removes them.
        handles.keep(self._places)
        for hook in self._hooks:
            place = hook.place
            hooks = None if place is None else place()
            if hooks is None or (hook.options and not hook.note_options()):
                hook.register(handles, self._places)
            else:
                hooks[hook.number] = hook.hook


class _Hook:
    """A hook of one module. It is registered again at its first place, which is ten times as fast as with a new handle.

    Args:
        module: the module.
        hook: the hook.
        with_kwargs: whether the hook gets the keyword arguments of calls.

    Attributes:
        place: the dictionary in which torch keeps the hook; None before, and if the module returns handles of another class.
        options: the dictionaries in which torch notes the options of the hook.
        number: the key of the hook in all of them.
    """

    __slots__ = ("hook", "module", "number", "options", "place", "with_kwargs")

    def __init__(self, module: ReferenceType[nn.Module], hook: Callable[..., Any], *, with_kwargs: bool = False) -> None:
        self.module = module
        self.hook = hook
        self.with_kwargs = with_kwargs
        self.place: ReferenceType[Any] | None = None
        self.options: Sequence[ReferenceType[Any]] = ()
        self.number = -1

    def register(self, handles: Handles, places: Places) -> None:
        """Register the hook, for the first time or because the module has another dictionary of hooks, as after a deepcopy."""
        module = self.module()
        if module is None:
            return
        register = module.register_forward_pre_hook if isinstance(self.hook, PreHook) else module.register_forward_hook
        handle = handles.register(register, self.hook, with_kwargs=self.with_kwargs)
        if type(handle) is RemovableHandle:
            if self.place is not None:
                places.leave_out(self.number)
            places.add(handle)
            self.number = handle.id
            self.options = [each for each in handle.extra_dict_ref if handle.id in (each() or ())]
            self.place = handle.hooks_dict_ref

    def note_options(self) -> bool:
        """Note the options again. Returns False if the module has other dictionaries for them now."""
        dictionaries: list[Any] = [option() for option in self.options]
        if None in dictionaries:
            return False
        for each in dictionaries:
            each[self.number] = True
        return True


def _pre_hook(module: ReferenceType[nn.Module], hooks: EagerHooks) -> _Hook:
    return _Hook(module, PlainPreHook(hooks) if hooks.actions.only_reads_input else PreHook(hooks), with_kwargs=True)


def _plain_hook(module: ReferenceType[nn.Module], hook: PlainHook | WholeHook) -> _Hook:
    return _Hook(module, hook, with_kwargs=isinstance(hook, WholeHook))


def _plain(actions: ModuleActions, switch: HookSwitch, fallback: Callable[..., Any]) -> list[PlainHook | WholeHook]:
    """The forward hooks of a module, in order: one for each action on whole calls, and one for the readers between two of them.

    The last hook also hooks the gradient of the result, because an action on whole calls may replace the result.
    """
    grad = _grad_hook(actions.output_grad, switch)
    hooks: list[PlainHook | WholeHook] = []
    for action in actions.output:
        if action.whole:
            hooks.append(WholeHook(switch, actions.called, action))
        else:
            is_last = action is actions.output[-1]
            hooks.append(PlainHook(switch, actions.called, action.call, grad if is_last else None, fallback))
    if grad is not None and (not actions.output or actions.output[-1].whole):
        hooks.append(PlainHook(switch, actions.called, None, grad, fallback))
    return hooks


def _grad_hook(actions: Sequence[Action], switch: HookSwitch) -> GradHook | GradReader | None:
    if not actions:
        return None
    (first, *others) = actions
    reads = first.backward is BackwardPass.LOSS and first.only_reads and not others
    return GradReader(switch, first.call) if reads else GradHook(actions, switch)
