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

from lightning_hooks.hooks.eager import EagerHooks, ForwardHook, PreHook
from lightning_hooks.hooks.gate import Gate, Passes
from lightning_hooks.hooks.gradients import GradHook, OutputGradients
from lightning_hooks.hooks.handles import Handles, Removable
from lightning_hooks.hooks.plain import LookHook, PlainHook, choose_tensor_hooks, fall_back
from lightning_hooks.hooks.site import HookSite, TensorAction


class ModuleHooks:
    """The hooks of all sites outside compiled code.

    Args:
        step_handles: removes what must not outlive a step; closed when the step ends, or the hooks are removed before.

    Example:
        >>> layer, seen, handles = nn.Linear(1, 1), [], Handles()
        >>> hooks = ModuleHooks([HookSite(layer, output=(TensorAction("", seen.append),))], Gate(), Handles())
        >>> hooks.put_on(handles); len(layer._forward_hooks), len(handles)
        (1, 1)
        >>> handles.close(); len(layer._forward_hooks)
        0
    """

    def __init__(self, sites: Iterable[HookSite], gate: Gate, step_handles: Handles) -> None:
        choose_tensor_hooks()
        gradients = OutputGradients(step_handles)
        fallback = partial(fall_back, gradients)
        # Known weakly: what removes the hooks of a lost hook manager must not keep the model alive.
        self._hooks: list[tuple[ReferenceType[nn.Module], PreHook | ForwardHook]] = []
        self._plain: list[_Plain] = []
        for site in sites:
            known = ref(site.module)
            if site.is_plain:
                self._plain.append(_Plain(known, _plain(site, gate, fallback)))
                continue
            hooks = EagerHooks(site, gate, step_handles, gradients)
            if site.input or site.input_grad:
                self._hooks.append((known, PreHook(hooks)))
            if site.output or site.output_grad or site.input_grad or site.node:
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


def _plain(site: HookSite, gate: Gate, fallback: Callable[..., Any]) -> PlainHook:
    see = next((action.visit for action in site.output if isinstance(action, TensorAction)), None)
    grad: GradHook | LookHook | None = None
    for action in site.output_grad:
        reads = action.passes is Passes.LOSS and not action.changes
        grad = LookHook(gate, action.visit) if reads else GradHook([action], gate)
    return PlainHook(gate, site.called, see, grad, fallback)
