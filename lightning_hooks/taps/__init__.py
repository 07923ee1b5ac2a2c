"""Where a tensor is seen: registering and removing hooks. Knows torch, neither statistics nor transforms."""

from lightning_hooks.taps.gate import Gate
from lightning_hooks.taps.gradients import GradHook, Visitor
from lightning_hooks.taps.handles import Handles, Hook, Inert
from lightning_hooks.taps.modules import Line, Place, register

__all__ = ["Gate", "GradHook", "Handles", "Hook", "Inert", "Line", "Place", "Visitor", "register"]
