"""Where a tensor is seen: registering and removing hooks. Knows torch, neither statistics nor transforms."""

from lightning_hooks.taps.gate import Gate
from lightning_hooks.taps.gradients import GradHook, Visitor
from lightning_hooks.taps.handles import Handles, OurHook, for_each
from lightning_hooks.taps.looking import plain_hooks
from lightning_hooks.taps.module_hooks import ModuleHooks
from lightning_hooks.taps.modules import is_recomputation
from lightning_hooks.taps.place import Call, Line, Place

__all__ = [
    "Call",
    "Gate",
    "GradHook",
    "Handles",
    "Line",
    "ModuleHooks",
    "OurHook",
    "Place",
    "Visitor",
    "for_each",
    "is_recomputation",
    "plain_hooks",
]
