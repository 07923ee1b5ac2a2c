"""How torch calls a module, and where a hook can take a shorter way.

Torch calls a module that has a hook by a longer way than one without, which takes as long as a hook that only looks. What a
module has as `_compiled_call_impl` it calls instead of either: `Module.compile` puts it there, `__getstate__` leaves it out of
copies and pickles, and a compiler that traces the module passes it by. So where a module has no hook but one that only looks,
that hook goes there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch import nn

SLOT: Final = "_compiled_call_impl"
CALL: Final[CodeType | None] = getattr(nn.Module.__call__, "__code__", None)
"""Of the function by which torch calls every module, its first argument the module; None where somebody has replaced it."""
_torch = sys.modules[nn.Module.__module__]
tracing_state: Callable[[], Any] = torch._C._get_tracing_state


def _has_slot() -> bool:
    """Whether torch calls what a module has there, by a function that tells whose it is, and leaves it out of copies."""

    def asked(*args: Any, **kwargs: Any) -> Any:
        return caller(sys._getframe(1)), args, kwargs

    module = nn.Identity()
    module.__dict__[SLOT] = asked
    return bool(module(1, key=2) == (module, (1,), {"key": 2})) and SLOT not in module.__getstate__()


def in_slot(holder: Any) -> Any:
    """What torch calls in place of a module; None where that is nothing, and of what is no module."""
    return getattr(holder, SLOT, None)


def caller(frame: FrameType) -> Any:
    """The module that is called in a frame of torch's; None in another frame.

    Who copies what a module is made of, as libraries for meta-learning do, copies what is in the slot too, so only the frame
    tells which module is meant.
    """
    return frame.f_locals["self"] if frame.f_code is CALL else None


def is_bare(module: nn.Module) -> bool:
    """Whether neither the module nor all modules have hooks, and nothing is traced: torch then does no more than to call it."""
    return not (
        module._backward_hooks
        or module._backward_pre_hooks
        or module._forward_hooks
        or module._forward_pre_hooks
        or _torch._global_backward_hooks
        or _torch._global_backward_pre_hooks
        or _torch._global_forward_hooks
        or _torch._global_forward_pre_hooks
        or tracing_state() is not None
    )


HAS_SLOT: Final = _has_slot()
_METHODS: Final = ("__call__", "_call_impl", "register_forward_hook")
_PLAIN: Final = tuple(getattr(nn.Module, name) for name in _METHODS)


def is_free(module: nn.Module) -> bool:
    """Whether a hook can go into the module's slot: it is called as torch calls modules, and nothing else is there."""
    kind, own = type(module), module.__dict__
    return (
        HAS_SLOT
        and SLOT not in own
        and "forward" not in own
        and tuple(getattr(kind, name) for name in _METHODS) == _PLAIN
        and not isinstance(module, torch.jit.ScriptModule)
        and is_bare(module)
    )


def asked_for_hooks(model: nn.Module) -> set[int]:
    """The ids of the modules that another one asks for hooks, to skip calling them where there are none.

    Args:
        model: the root.
    """
    asking = [module for module in model.modules() if isinstance(module, nn.TransformerEncoderLayer)]
    return {id(part) for module in asking for part in module.modules()}


def give_way(module: nn.Module, hook: Callable[..., Any]) -> None:
    """Put a hook where torch looks for it, before those that came since.

    Args:
        module: with the hook in its slot.
        hook: it.
    """
    module.__dict__.pop(SLOT, None)
    if all(other is not hook for other in module._forward_hooks.values()):  # copies of a module may share them
        module.register_forward_hook(hook, prepend=True)
