"""The callbacks that a user adds to a Trainer.

Each is loaded on first use: every `Trainer()` calls the entry point in `environment`, which must cost nothing if it adds none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_hooks.callbacks.capture import ActivationCapture as ActivationCapture
    from lightning_hooks.callbacks.custom import CustomHooks as CustomHooks
    from lightning_hooks.callbacks.health import HealthMonitor as HealthMonitor
    from lightning_hooks.callbacks.monitor import StatsMonitor as StatsMonitor
    from lightning_hooks.callbacks.recorder import FlightRecorder as FlightRecorder
    from lightning_hooks.callbacks.transforms import ActivationTransforms as ActivationTransforms
    from lightning_hooks.callbacks.transforms import GradientTransforms as GradientTransforms

_PUBLIC = {
    "capture": ("ActivationCapture",),
    "custom": ("CustomHooks",),
    "health": ("HealthMonitor",),
    "monitor": ("StatsMonitor",),
    "recorder": ("FlightRecorder",),
    "transforms": ("ActivationTransforms", "GradientTransforms"),
}
_FILES = {name: file for file, names in _PUBLIC.items() for name in names}
__all__ = sorted(_FILES)


def __getattr__(name: str) -> Any:
    """Load a callback on first use."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)
