"""The hooks on the modules of a model for steps of one kind: made once, put on and taken off at every batch.

There may be thousands, so what is kept of each is little: the module and the hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias
from weakref import ReferenceType, ref

from torch import nn
from torch.utils.hooks import RemovableHandle

from lightning_hooks.hooks.gate import Gate
from lightning_hooks.hooks.gradients import GradHook
from lightning_hooks.hooks.handles import Handles
from lightning_hooks.hooks.module_calls import EagerCall, ForwardHook, PreHook
from lightning_hooks.hooks.plain import LookHook, PlainHook
from lightning_hooks.hooks.site import HookSite, TensorAction

_Hook: TypeAlias = PreHook | ForwardHook | PlainHook


class ModuleHooks:
    """What does on modules all that is to happen there.

    Args:
        places: where, and what.
        gate: of the model.
        step_handles: takes over the handles on tensors that may outlive a step; closed when the batch ends.

    Example:
        >>> layer, seen, handles = nn.Linear(1, 1), [], Handles()
        >>> hooks = ModuleHooks([HookSite(layer, after=(TensorAction("", seen.append),))], Gate(), Handles())
        >>> hooks.put_on(handles); len(layer._forward_hooks), len(handles)
        (1, 1)
        >>> handles.close(); len(layer._forward_hooks)
        0
    """

    def __init__(self, places: Iterable[HookSite], gate: Gate, step_handles: Handles) -> None:
        # Known weakly: whoever cleans up after one that was lost must not keep the model alive.
        self._hooks: list[tuple[ReferenceType[nn.Module], _Hook]] = []
        general = GeneralHooks(gate, step_handles)
        for place in places:
            self._hooks += [(ref(place.module), hook) for hook in _hooks_of(place, gate, general)]
        self._plain: list[RemovableHandle | None] = [None] * len(self._hooks)  # of those that were on before

    def put_on(self, handles: Handles) -> None:
        """Register them.

        Args:
            handles: take over those of the hooks.
        """
        for i, (known, hook) in enumerate(self._hooks):
            module = known()
            if module is None:
                continue
            if isinstance(hook, PlainHook):
                handles.keep(self._put_on_plain(i, module, hook))
            elif isinstance(hook, ForwardHook):
                handles.keep(module.register_forward_hook(hook, with_kwargs=True))
            else:
                handles.keep(module.register_forward_pre_hook(hook, with_kwargs=True))

    def _put_on_plain(self, index: int, module: nn.Module, hook: PlainHook) -> RemovableHandle:
        """Register it; again under its old handle, since to make one takes ten times as long as to use it."""
        handle, placed = self._plain[index], module._forward_hooks
        if handle is not None and handle.hooks_dict_ref() is placed:
            placed[handle.id] = hook
            return handle
        handle = module.register_forward_hook(hook)
        self._plain[index] = handle if placed.get(handle.id) is hook else None  # else it keeps its hooks elsewhere
        return handle


def _hooks_of(place: HookSite, gate: Gate, general: GeneralHooks) -> list[_Hook]:
    if place.is_plain:
        return [_plain(place, gate, general)]
    call = EagerCall(place, gate, general.step_handles)
    hooks: list[_Hook] = []
    if place.before or place.input_grad:
        hooks.append(call.pre_hook)
    if place.after or place.output_grad or place.input_grad or place.node:
        hooks.append(call.forward_hook)
    return hooks


def _plain(place: HookSite, gate: Gate, otherwise: Callable[..., Any]) -> PlainHook:
    see = next((line.visit for line in place.after if isinstance(line, TensorAction)), None)
    grad: GradHook | LookHook | None = None
    for line in place.output_grad:
        grad = GradHook([line.visit], gate) if line.changes else LookHook(gate, line.visit)
    return PlainHook(gate, place.called, see, grad, otherwise)


def _place_of(module: nn.Module, hook: PlainHook) -> HookSite:
    """What `_plain` has made a hook of."""
    after = () if hook.see is None else (TensorAction("", hook.see),)
    if isinstance(hook.grad, GradHook):
        output_grad: tuple[TensorAction, ...] = (TensorAction("", hook.grad.visitors[0], changes=True),)
    else:
        output_grad = () if hook.grad is None else (TensorAction("", hook.grad.see),)
    return HookSite(module, after=after, output_grad=output_grad, called=hook.called)


class GeneralHooks:
    """The hooks that can do everything, of those plain places that need them; made when they do.

    Args:
        gate: of the model.
        step_handles: takes over the handles on tensors that may outlive a step.
    """

    def __init__(self, gate: Gate, step_handles: Handles) -> None:
        self.step_handles = step_handles
        self._gate = gate
        self._made: dict[PlainHook, ForwardHook] = {}

    def __call__(self, hook: PlainHook, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Called in place of a plain hook, with a result that it does not look at."""
        general = self._made.get(hook)
        if general is None:
            general = EagerCall(_place_of(module, hook), self._gate, self.step_handles).forward_hook
            self._made[hook] = general
        return general(module, args, {}, output)
