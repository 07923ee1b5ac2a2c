"""The hooks on the modules of a model for steps of one kind: made once, registered and removed at every batch.

There may be thousands, so what is kept of each is little: the module and the hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

from torch import nn
from torch.utils.hooks import RemovableHandle

from lightning_hooks.hooks.action import Action, ModuleActions, by_module
from lightning_hooks.hooks.eager import EagerHooks, ForwardHook, PreHook
from lightning_hooks.hooks.gate import Gate, Passes
from lightning_hooks.hooks.gradients import GradHook, OutputGradients
from lightning_hooks.hooks.handles import Handles, Removable
from lightning_hooks.hooks.plain import GradReader, PlainHook, choose_tensor_hooks, fall_back


class ModuleHooks:
    """The hooks of modules outside compiled code.

    Args:
        actions: at modules; those with one tensor in the order in which they run.
        called: takes the ids of the modules that are called.
        step_handles: removes what must not outlive a step; closed when the step ends, or the hooks are removed before.

    Example:
        >>> layer, outputs, handles = nn.Linear(1, 1), [], Handles()
        >>> hooks = ModuleHooks([Action(layer, "output", outputs.append)], set(), Gate(), Handles())
        >>> hooks.put_on(handles); len(layer._forward_hooks), len(handles)
        (1, 1)
        >>> handles.close(); len(layer._forward_hooks)
        0
    """

    def __init__(self, actions: Iterable[Action], called: set[int], gate: Gate, step_handles: Handles) -> None:
        choose_tensor_hooks()
        gradients = OutputGradients(step_handles)
        fallback = partial(fall_back, gradients)
        # Known weakly: what removes the hooks of a lost hook manager must not keep the model alive.
        self._hooks: list[tuple[ReferenceType[nn.Module], PreHook | ForwardHook]] = []
        self._plain: list[_Plain] = []
        for own in by_module(actions, called):
            known = ref(own.module)
            if own.is_plain:
                self._plain.append(_Plain(known, _plain(own, gate, fallback)))
                continue
            hooks = EagerHooks(own, gate, step_handles, gradients)
            if own.input or own.input_grad:
                self._hooks.append((known, PreHook(hooks)))
            if own.output or own.output_grad or own.input_grad or own.node:
                self._hooks.append((known, ForwardHook(hooks)))

    def put_on(self, handles: Handles) -> None:
        """Register them; the handles take them over."""
        for plain in self._plain:
            plain.put_on(handles)
        for known, hook in self._hooks:
            module = known()
            if module is not None:
                register = module.register_forward_pre_hook if isinstance(hook, PreHook) else module.register_forward_hook
                handles.register(register, hook, with_kwargs=True)


class _Plain:
    """A plain hook of one module. It goes on under its first handle: to register it at every batch takes ten times as long."""

    __slots__ = ("handle", "hook", "module")

    def __init__(self, module: ReferenceType[nn.Module], hook: PlainHook) -> None:
        self.module = module
        self.hook = hook
        self.handle: Removable | None = None

    def put_on(self, handles: Handles) -> None:
        if type(self.handle) is RemovableHandle and (hooks := self.handle.hooks_dict_ref()) is not None:
            # Keep the handle before registering the hook: if Ctrl-C arrives in between, close() still removes it.
            handles.keep(self.handle)
            hooks[self.handle.id] = self.hook
        elif (module := self.module()) is not None:  # the first time, or the module has another dictionary of hooks now
            self.handle = handles.register(module.register_forward_hook, self.hook)


def _plain(own: ModuleActions, gate: Gate, fallback: Callable[..., Any]) -> PlainHook:
    (read,) = (action.call for action in own.output) if own.output else (None,)  # readers of one source are one action
    grad: GradHook | GradReader | None = None
    if own.output_grad:
        (first, *others) = own.output_grad
        reads = first.passes is Passes.LOSS and first.only_reads and not others
        grad = GradReader(gate, first.call) if reads else GradHook(own.output_grad, gate)
    return PlainHook(gate, own.called, read, grad, fallback)
