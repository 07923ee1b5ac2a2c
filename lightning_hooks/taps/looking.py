"""The hooks of what is only looked at: the compiled ones where they were built, those in Python otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hooks import backends

__all__ = ["LookHook", "PlainHook", "StandIn"]

if TYPE_CHECKING or backends.hooks().module is None:
    from lightning_hooks.taps.plain import LookHook, PlainHook, StandIn
else:
    from lightning_hooks.taps.quick import LookHook, PlainHook, StandIn
