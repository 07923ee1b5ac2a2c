"""Registering and removing hooks on modules and tensors. Knows torch, neither statistics nor transforms."""

from lightning_hooks.hooks import traces
from lightning_hooks.hooks.action import Action, RowInGraph, by_module, joined
from lightning_hooks.hooks.eager import is_recomputation
from lightning_hooks.hooks.gradients import GradHook, may_have_gradient, unfrozen
from lightning_hooks.hooks.handles import Handles, OurHook, for_each
from lightning_hooks.hooks.listening import Listening, cell_of
from lightning_hooks.hooks.module_hooks import ModuleHooks
from lightning_hooks.hooks.ready_made import breakpoint_if_nonfinite, print_shapes, print_stats, save_to
from lightning_hooks.hooks.stack_room import StackRoom
from lightning_hooks.hooks.switch import BackwardPass, HookSwitch

__all__ = [
    "Action",
    "BackwardPass",
    "GradHook",
    "Handles",
    "HookSwitch",
    "Listening",
    "ModuleHooks",
    "OurHook",
    "RowInGraph",
    "StackRoom",
    "breakpoint_if_nonfinite",
    "by_module",
    "cell_of",
    "for_each",
    "is_recomputation",
    "joined",
    "may_have_gradient",
    "print_shapes",
    "print_stats",
    "save_to",
    "traces",
    "unfrozen",
]
