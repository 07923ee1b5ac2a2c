"""Where a tensor is seen: registering and removing hooks. Knows torch, neither statistics nor transforms."""

from lightning_hooks.taps.calling import asked_for_hooks, in_slot
from lightning_hooks.taps.gate import Gate
from lightning_hooks.taps.gradients import GradHook, Visitor
from lightning_hooks.taps.handles import Handles, Inert, OurHook, for_each
from lightning_hooks.taps.module_hooks import ModuleHooks, plain_hooks, take_off_lost
from lightning_hooks.taps.modules import is_recomputation
from lightning_hooks.taps.place import Call, Line, Place

__all__ = [
    "Call",
    "Gate",
    "GradHook",
    "Handles",
    "Inert",
    "Line",
    "ModuleHooks",
    "OurHook",
    "Place",
    "Visitor",
    "asked_for_hooks",
    "for_each",
    "in_slot",
    "is_recomputation",
    "plain_hooks",
    "take_off_lost",
]
