"""Watch what flows through every layer and parameter of a training run, and change gradients by rule.

The public names load on first use (PEP 562): importing the package loads neither torch nor Lightning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_hooks.callbacks import GradientTransforms, StatsMonitor
    from lightning_hooks.engine import Instrument, assert_no_hooks, instrument, match, paused
    from lightning_hooks.errors import (
        HooksError,
        HooksLeftError,
        InPlaceError,
        NoMatchError,
        RuleError,
        TransformError,
        UnsupportedError,
    )
    from lightning_hooks.rules import Apply, Watch
    from lightning_hooks.tensorboard import Run, read_run
    from lightning_hooks.transforms import (
        AddNoise,
        ClipByGlobalNorm,
        ClipByNorm,
        ClipByValue,
        Context,
        Function,
        Scale,
        Transform,
        Zero,
        ZeroNonFinite,
    )

__version__ = "0.1.0"

_ROOMS = {
    "callbacks": ("GradientTransforms", "StatsMonitor"),
    "engine": ("Instrument", "assert_no_hooks", "instrument", "match", "paused"),
    "errors": (
        "HooksError",
        "HooksLeftError",
        "InPlaceError",
        "NoMatchError",
        "RuleError",
        "TransformError",
        "UnsupportedError",
    ),
    "rules": ("Apply", "Watch"),
    "tensorboard": ("Run", "read_run"),
    "transforms": (
        "AddNoise",
        "ClipByGlobalNorm",
        "ClipByNorm",
        "ClipByValue",
        "Context",
        "Function",
        "Scale",
        "Transform",
        "Zero",
        "ZeroNonFinite",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "AddNoise",
    "Apply",
    "ClipByGlobalNorm",
    "ClipByNorm",
    "ClipByValue",
    "Context",
    "Function",
    "GradientTransforms",
    "HooksError",
    "HooksLeftError",
    "InPlaceError",
    "Instrument",
    "NoMatchError",
    "RuleError",
    "Run",
    "Scale",
    "StatsMonitor",
    "Transform",
    "TransformError",
    "UnsupportedError",
    "Watch",
    "Zero",
    "ZeroNonFinite",
    "assert_no_hooks",
    "instrument",
    "match",
    "paused",
    "read_run",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its room."""
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__version__"]
