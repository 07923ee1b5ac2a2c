"""The hooks on the modules of a model for steps of one kind: made once, put on and taken off many times.

There may be thousands, so what is kept of each is little: the module and the hook.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, TypeAlias
from weakref import ReferenceType, ref

from torch import nn

from lightning_hooks.taps.calling import SLOT, is_free
from lightning_hooks.taps.gate import Gate
from lightning_hooks.taps.gradients import GradHook
from lightning_hooks.taps.handles import Handles, for_each
from lightning_hooks.taps.looking import LookHook, PlainHook, StandIn
from lightning_hooks.taps.modules import EagerCall, ForwardHook, PreHook
from lightning_hooks.taps.place import Line, Place

_Hook: TypeAlias = PreHook | ForwardHook | PlainHook


class ModuleHooks:
    """What does on modules all that is to happen there.

    Args:
        places: where, and what.
        gate: of the model.
        step_handles: takes over the handles on tensors that may outlive a step; closed when the step ends.
        registered: the ids of modules whose hooks must be where torch registers them.

    Example:
        >>> layer, seen, handles = nn.Linear(1, 1), [], Handles()
        >>> hooks = ModuleHooks([Place(layer, after=(Line("", seen.append),))], Gate(), Handles())
        >>> hooks.put_on(handles); len(list(plain_hooks(layer))), len(handles)
        (1, 0)
        >>> hooks.take_off(); hooks.take_off(); len(list(plain_hooks(layer)))
        0
    """

    def __init__(
        self, places: Iterable[Place], gate: Gate, step_handles: Handles, registered: Container[int] = frozenset()
    ) -> None:
        # Known weakly: whoever cleans up after one that was lost must not keep the model alive.
        self.modules: list[ReferenceType[nn.Module]] = []
        self._hooks: list[_Hook] = []
        self._registered = registered
        general = GeneralHooks(gate, step_handles)
        for place in places:
            for hook in _hooks_of(place, gate, general):
                self.modules.append(ref(place.module))
                self._hooks.append(hook)

    def put_on(self, handles: Handles) -> None:
        """Register them.

        Args:
            handles: take over those of the hooks that `take_off` leaves on.
        """
        for module, hook in self._placed():
            if isinstance(hook, PreHook):
                handles.keep(module.register_forward_pre_hook(hook, with_kwargs=True))
            elif isinstance(hook, ForwardHook):
                handles.keep(module.register_forward_hook(hook, with_kwargs=True))
            elif is_free(module) and id(module) not in self._registered:
                module.__dict__[SLOT] = StandIn(hook, ref(module))
            else:
                handle = module.register_forward_hook(hook)  # a handle takes more memory than the hook
                if module._forward_hooks.get(handle.id) is not hook:
                    handles.keep(handle)

    def take_off(self) -> None:
        """Remove the plain ones, also when removing one of them fails; harmless where they are not there."""
        for_each(_take_off, [(module, hook) for module, hook in self._placed() if isinstance(hook, PlainHook)])

    def _placed(self) -> Iterator[tuple[nn.Module, _Hook]]:
        for known, hook in zip(self.modules, self._hooks, strict=True):
            module = known()
            if module is not None:
                yield module, hook


def take_off_lost(modules: Iterable[ReferenceType[nn.Module]], gate: Gate) -> None:
    """Remove the plain hooks of a gate that nobody else will.

    Args:
        modules: on which they are.
        gate: that they ask.
    """
    there = [module for known in modules if (module := known()) is not None]
    for_each(_take_off, [(module, hook) for module in there for hook in plain_hooks(module) if hook.gate is gate])


def plain_hooks(module: nn.Module) -> Iterator[PlainHook]:
    """The plain hooks on a module, wherever they are.

    Args:
        module: any.
    """
    inside = module.__dict__.get(SLOT)
    if isinstance(inside, StandIn):
        yield inside.hook
    yield from (hook for hook in module._forward_hooks.values() if isinstance(hook, PlainHook))


def _take_off(placed: tuple[nn.Module, PlainHook]) -> None:
    module, hook = placed
    inside = module.__dict__.get(SLOT)
    if isinstance(inside, StandIn) and inside.hook is hook:
        del module.__dict__[SLOT]
    for key, other in list(module._forward_hooks.items()):  # a list: a finalizer may take off others meanwhile
        if other is hook:
            module._forward_hooks.pop(key, None)


def _hooks_of(place: Place, gate: Gate, general: GeneralHooks) -> list[_Hook]:
    if place.is_plain:
        return [_plain(place, gate, general)]
    call = EagerCall(place, gate, general.step_handles)
    hooks: list[_Hook] = []
    if place.before or place.input_grad:
        hooks.append(call.pre_hook)
    if place.after or place.output_grad or place.input_grad or place.node:
        hooks.append(call.forward_hook)
    return hooks


def _plain(place: Place, gate: Gate, otherwise: Callable[..., Any]) -> PlainHook:
    see = next((line.visit for line in place.after if isinstance(line, Line)), None)
    grad: GradHook | LookHook | None = None
    for line in place.output_grad:
        grad = GradHook([line.visit], gate) if line.changes else LookHook(gate, line.visit)
    return PlainHook(gate, place.called, see, grad, otherwise)


def _place_of(module: nn.Module, hook: PlainHook) -> Place:
    """What `_plain` has made a hook of."""
    after = () if hook.see is None else (Line("", hook.see),)
    if isinstance(hook.grad, GradHook):
        output_grad: tuple[Line, ...] = (Line("", hook.grad.visitors[0], changes=True),)
    else:
        output_grad = () if hook.grad is None else (Line("", hook.grad.see),)
    return Place(module, after=after, output_grad=output_grad, called=hook.called)


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
