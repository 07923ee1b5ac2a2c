"""Log statistics of every layer and parameter during training, and change gradients by rules.

The public names load on first use (PEP 562): importing the package loads neither torch nor Lightning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, which do not read `_PUBLIC`; `import A as A` exports a name
    from lightning_hooks import hooks as hooks
    from lightning_hooks import transforms as transforms
    from lightning_hooks.callbacks import ActivationCapture as ActivationCapture
    from lightning_hooks.callbacks import ActivationTransforms as ActivationTransforms
    from lightning_hooks.callbacks import CustomHooks as CustomHooks
    from lightning_hooks.callbacks import FlightRecorder as FlightRecorder
    from lightning_hooks.callbacks import GradientTransforms as GradientTransforms
    from lightning_hooks.callbacks import HealthMonitor as HealthMonitor
    from lightning_hooks.callbacks import StatsMonitor as StatsMonitor
    from lightning_hooks.callbacks.check import check as check
    from lightning_hooks.callbacks.instrument import instrument as instrument
    from lightning_hooks.capture import Capture as Capture
    from lightning_hooks.capture import load_capture as load_capture
    from lightning_hooks.checks import Check as Check
    from lightning_hooks.checks import CheckReport as CheckReport
    from lightning_hooks.checks import CheckResult as CheckResult
    from lightning_hooks.engine import Instrument as Instrument
    from lightning_hooks.engine import assert_no_hooks as assert_no_hooks
    from lightning_hooks.engine import match as match
    from lightning_hooks.engine import paused as paused
    from lightning_hooks.errors import HookError as HookError
    from lightning_hooks.errors import HooksError as HooksError
    from lightning_hooks.errors import HooksLeftError as HooksLeftError
    from lightning_hooks.errors import InPlaceError as InPlaceError
    from lightning_hooks.errors import NoMatchError as NoMatchError
    from lightning_hooks.errors import RuleError as RuleError
    from lightning_hooks.errors import TransformError as TransformError
    from lightning_hooks.errors import UnsupportedError as UnsupportedError
    from lightning_hooks.health import Finding as Finding
    from lightning_hooks.health import HealthRule as HealthRule
    from lightning_hooks.health import Severity as Severity
    from lightning_hooks.health import Symptom as Symptom
    from lightning_hooks.hooks.hook_point import HookPoint as HookPoint
    from lightning_hooks.records import RunContext as RunContext
    from lightning_hooks.records import RunFacts as RunFacts
    from lightning_hooks.records import StepConsumer as StepConsumer
    from lightning_hooks.records import StepView as StepView
    from lightning_hooks.rules import Apply as Apply
    from lightning_hooks.rules import Hook as Hook
    from lightning_hooks.rules import Units as Units
    from lightning_hooks.rules import Watch as Watch
    from lightning_hooks.stats.accumulators import Accumulator as Accumulator
    from lightning_hooks.stats.columns import Column as Column
    from lightning_hooks.tensorboard import Run as Run
    from lightning_hooks.tensorboard import read_run as read_run
    from lightning_hooks.transforms import Transform as Transform
    from lightning_hooks.transforms.conflicts import aggregate_losses as aggregate_losses

__version__ = "0.1.0"

# The public names by the module that holds them. `__all__` and loading follow from it.
_PUBLIC = {
    "callbacks": (
        "ActivationCapture",
        "ActivationTransforms",
        "CustomHooks",
        "GradientTransforms",
        "FlightRecorder",
        "HealthMonitor",
        "StatsMonitor",
    ),
    "callbacks.check": ("check",),
    "callbacks.instrument": ("instrument",),
    "capture": ("Capture", "load_capture"),
    "checks": ("Check", "CheckReport", "CheckResult"),
    "engine": ("Instrument", "assert_no_hooks", "match", "paused"),
    "errors": (
        "HookError",
        "HooksError",
        "HooksLeftError",
        "InPlaceError",
        "NoMatchError",
        "RuleError",
        "TransformError",
        "UnsupportedError",
    ),
    "health": ("Finding", "HealthRule", "Severity", "Symptom"),
    "hooks.hook_point": ("HookPoint",),
    "records": ("RunContext", "RunFacts", "StepConsumer", "StepView"),
    "rules": ("Apply", "Hook", "Units", "Watch"),
    "stats.accumulators": ("Accumulator",),
    "stats.columns": ("Column",),
    "tensorboard": ("Run", "read_run"),
    "transforms": ("Transform",),
    # `transforms` exports transforms only. This function imports its extra, torchjd, when it is called.
    "transforms.conflicts": ("aggregate_losses",),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
# Packages that are public as a whole.
_PACKAGES = ("hooks", "transforms")
__all__ = sorted([*_MODULE_OF, *_PACKAGES])


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__version__"]
