"""The hooks on the modules of a model for steps of one kind: created once, registered and removed at every batch.

There may be thousands of hooks, so only the module and the hook object are kept for each.
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
from lightning_hooks.hooks.handles import Handles, Removable
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
        >>> hooks.register(handles); len(layer._forward_hooks), len(handles)
        (1, 1)
        >>> handles.close(); len(layer._forward_hooks)
        0
    """

    def __init__(self, actions: Iterable[Action], called: set[int], switch: HookSwitch, step_handles: Handles) -> None:
        choose_tensor_hooks()
        gradients = OutputGradients(step_handles)
        fallback = partial(fall_back, gradients, switch)
        self._hooks: list[_Hook] = []
        for at_module in by_module(actions, called):
            # Hold modules by weak references: the finalizer of the hook manager must not keep the model alive.
            module = ref(at_module.module)
            is_plain = at_module.is_plain and (IS_BUILT or not at_module.acts_after)
            if at_module.acts_before or not is_plain:
                hooks = EagerHooks(at_module, switch, step_handles, gradients)
                self._hooks += [_pre_hook(module, hooks)] if at_module.acts_before else []
                self._hooks += [] if is_plain else [_Hook(module, ForwardHook(hooks))]
            if is_plain:
                self._hooks += [_plain_hook(module, hook) for hook in _plain(at_module, switch, fallback)]

    def register(self, handles: Handles) -> None:
        """Register the hooks; closing `handles` removes them."""
        for hook in self._hooks:
            hook.register(handles)


class _Hook:
    """A hook with keyword arguments of one module."""

    __slots__ = ("hook", "module")

    def __init__(self, module: ReferenceType[nn.Module], hook: Callable[..., Any]) -> None:
        self.module = module
        self.hook = hook

    def register(self, handles: Handles) -> None:
        module = self.module()
        if module is not None:
            register = module.register_forward_pre_hook if isinstance(self.hook, PreHook) else module.register_forward_hook
            handles.register(register, self.hook, with_kwargs=True)


class _PlainHook(_Hook):
    """A plain hook of one module. It is registered again under its first handle, which is ten times as fast as a new handle."""

    __slots__ = ("handle",)

    def __init__(self, module: ReferenceType[nn.Module], hook: PlainHook | PreHook) -> None:
        super().__init__(module, hook)
        self.handle: Removable | None = None

    def register(self, handles: Handles) -> None:
        if type(self.handle) is RemovableHandle and self._restore(self.handle, handles):
            return
        module = self.module()
        if module is not None:
            # Register normally on first use, and again if the module's hook dictionary was replaced (for example by deepcopy).
            self.handle = self._register(module, handles)

    def _restore(self, handle: RemovableHandle, handles: Handles) -> bool:
        """Put the hook back where its first handle had put it. Returns False if the module has another dictionary now."""
        hooks = handle.hooks_dict_ref()
        if hooks is None:
            return False
        # Keep the handle before registering the hook: if Ctrl-C arrives in between, close() still removes it.
        handles.keep(handle)
        hooks[handle.id] = self.hook
        return True

    def _register(self, module: nn.Module, handles: Handles) -> Removable:
        handle: Removable = handles.register(module.register_forward_hook, self.hook)
        return handle


class _PlainPreHook(_PlainHook):
    """A plain pre-hook of one module. Torch keeps a second dictionary of the pre-hooks that get keyword arguments."""

    __slots__ = ()

    def _restore(self, handle: RemovableHandle, handles: Handles) -> bool:
        hooks, with_kwargs = handle.hooks_dict_ref(), [extra() for extra in handle.extra_dict_ref]
        if hooks is None or len(with_kwargs) != 1 or with_kwargs[0] is None:
            return False
        handles.keep(handle)
        with_kwargs[0][handle.id] = True
        hooks[handle.id] = self.hook
        return True

    def _register(self, module: nn.Module, handles: Handles) -> Removable:
        handle: Removable = handles.register(module.register_forward_pre_hook, self.hook, with_kwargs=True)
        return handle


def _pre_hook(module: ReferenceType[nn.Module], hooks: EagerHooks) -> _Hook:
    is_plain = hooks.actions.only_reads_input
    return _PlainPreHook(module, PlainPreHook(hooks)) if is_plain else _Hook(module, PreHook(hooks))


def _plain_hook(module: ReferenceType[nn.Module], hook: PlainHook | WholeHook) -> _Hook:
    return _Hook(module, hook) if isinstance(hook, WholeHook) else _PlainHook(module, hook)


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
