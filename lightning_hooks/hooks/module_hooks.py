"""The hooks on the modules of a model for steps of one kind: made once, registered and removed at every batch.

There may be thousands, so what is kept of each is little: the module and the hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import ReferenceType, ref

from torch import nn

from lightning_hooks.hooks.eager import EagerHooks, ForwardHook, PreHook
from lightning_hooks.hooks.gradients import GradHook, OutputGradients
from lightning_hooks.hooks.handles import Gate, Handles
from lightning_hooks.hooks.plain import Fallback, LookHook, PlainHook, choose_tensor_hooks
from lightning_hooks.hooks.site import HookSite, TensorAction


class ModuleHooks:
    """The hooks of all sites outside compiled code.

    Args:
        step_handles: removes what must not outlive a step; closed when the step ends, or the hooks are removed before.

    Example:
        >>> layer, seen, handles = nn.Linear(1, 1), [], Handles()
        >>> hooks = ModuleHooks([HookSite(layer, after=(TensorAction("", seen.append),))], Gate(), Handles())
        >>> hooks.put_on(handles); len(layer._forward_hooks), len(handles)
        (1, 1)
        >>> handles.close(); len(layer._forward_hooks)
        0
    """

    def __init__(self, sites: Iterable[HookSite], gate: Gate, step_handles: Handles) -> None:
        choose_tensor_hooks()
        gradients = OutputGradients(step_handles)
        fallback = Fallback(gradients)
        # Known weakly: what removes the hooks of a lost hook manager must not keep the model alive.
        self._hooks: list[tuple[ReferenceType[nn.Module], PlainHook | PreHook | ForwardHook]] = []
        for site in sites:
            known = ref(site.module)
            if site.is_plain:
                self._hooks.append((known, _plain(site, gate, fallback)))
                continue
            hooks = EagerHooks(site, gate, step_handles, gradients)
            if site.before or site.input_grad:
                self._hooks.append((known, PreHook(hooks)))
            if site.after or site.output_grad or site.input_grad or site.node:
                self._hooks.append((known, ForwardHook(hooks)))

    def put_on(self, handles: Handles) -> None:
        """Register them; the handles take them over."""
        for known, hook in self._hooks:
            module = known()
            if module is None:
                continue
            if isinstance(hook, PlainHook):
                handles.keep(module.register_forward_hook(hook))
            else:
                register = module.register_forward_pre_hook if isinstance(hook, PreHook) else module.register_forward_hook
                handles.keep(register(hook, with_kwargs=True))  # type: ignore[arg-type]


def _plain(site: HookSite, gate: Gate, fallback: Callable[..., Any]) -> PlainHook:
    see = next((action.visit for action in site.after if isinstance(action, TensorAction)), None)
    grad: GradHook | LookHook | None = None
    for action in site.output_grad:
        grad = GradHook([action.visit], gate) if action.changes else LookHook(gate, action.visit)
    return PlainHook(gate, site.called, see, grad, fallback)
