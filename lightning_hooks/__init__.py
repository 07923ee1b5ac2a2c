"""Log statistics of every layer and parameter during training, and change gradients by rules.

The public names load on first use (PEP 562): importing the package loads neither torch nor Lightning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, which do not read `_PUBLIC`; `import A as A` exports a name
    from lightning_hooks.callbacks import ActivationCapture as ActivationCapture
    from lightning_hooks.callbacks import ActivationTransforms as ActivationTransforms
    from lightning_hooks.callbacks import CustomHooks as CustomHooks
    from lightning_hooks.callbacks import FlightRecorder as FlightRecorder
    from lightning_hooks.callbacks import GradientTransforms as GradientTransforms
    from lightning_hooks.callbacks import HealthMonitor as HealthMonitor
    from lightning_hooks.callbacks import StatsMonitor as StatsMonitor
    from lightning_hooks.callbacks.check import check as check
    from lightning_hooks.capture import Capture as Capture
    from lightning_hooks.capture import load_capture as load_capture
    from lightning_hooks.checks import Check as Check
    from lightning_hooks.checks import CheckReport as CheckReport
    from lightning_hooks.checks import CheckResult as CheckResult
    from lightning_hooks.engine import Instrument as Instrument
    from lightning_hooks.engine import assert_no_hooks as assert_no_hooks
    from lightning_hooks.engine import instrument as instrument
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
    from lightning_hooks.hooks.hook_point import HookPoint as HookPoint
    from lightning_hooks.hooks.ready_made import breakpoint_if_nonfinite as breakpoint_if_nonfinite
    from lightning_hooks.hooks.ready_made import print_shapes as print_shapes
    from lightning_hooks.hooks.ready_made import print_stats as print_stats
    from lightning_hooks.hooks.ready_made import save_to as save_to
    from lightning_hooks.records import RunContext as RunContext
    from lightning_hooks.records import RunFacts as RunFacts
    from lightning_hooks.records import StepConsumer as StepConsumer
    from lightning_hooks.records import StepView as StepView
    from lightning_hooks.rules import Apply as Apply
    from lightning_hooks.rules import Hook as Hook
    from lightning_hooks.rules import Watch as Watch
    from lightning_hooks.stats.accumulators import Accumulator as Accumulator
    from lightning_hooks.stats.columns import Column as Column
    from lightning_hooks.tensorboard import Run as Run
    from lightning_hooks.tensorboard import read_run as read_run
    from lightning_hooks.transforms import EMA as EMA
    from lightning_hooks.transforms import AdaptiveClip as AdaptiveClip
    from lightning_hooks.transforms import AddDecayedWeights as AddDecayedWeights
    from lightning_hooks.transforms import AddNoise as AddNoise
    from lightning_hooks.transforms import AutoClip as AutoClip
    from lightning_hooks.transforms import Centralize as Centralize
    from lightning_hooks.transforms import Chain as Chain
    from lightning_hooks.transforms import ClipByBlockRMS as ClipByBlockRMS
    from lightning_hooks.transforms import ClipByGlobalNorm as ClipByGlobalNorm
    from lightning_hooks.transforms import ClipByNorm as ClipByNorm
    from lightning_hooks.transforms import ClipByValue as ClipByValue
    from lightning_hooks.transforms import Context as Context
    from lightning_hooks.transforms import Dropout as Dropout
    from lightning_hooks.transforms import EverySteps as EverySteps
    from lightning_hooks.transforms import FirstSteps as FirstSteps
    from lightning_hooks.transforms import Freeze as Freeze
    from lightning_hooks.transforms import Function as Function
    from lightning_hooks.transforms import KeepNonnegative as KeepNonnegative
    from lightning_hooks.transforms import Mask as Mask
    from lightning_hooks.transforms import NormAbove as NormAbove
    from lightning_hooks.transforms import NormalizeByNorm as NormalizeByNorm
    from lightning_hooks.transforms import Orthogonalize as Orthogonalize
    from lightning_hooks.transforms import OrthoGrad as OrthoGrad
    from lightning_hooks.transforms import PerModuleClip as PerModuleClip
    from lightning_hooks.transforms import ReverseGradient as ReverseGradient
    from lightning_hooks.transforms import Scale as Scale
    from lightning_hooks.transforms import ScaleByParamNorm as ScaleByParamNorm
    from lightning_hooks.transforms import ScaleByParamRMS as ScaleByParamRMS
    from lightning_hooks.transforms import ScaleBySchedule as ScaleBySchedule
    from lightning_hooks.transforms import Sign as Sign
    from lightning_hooks.transforms import SkipStep as SkipStep
    from lightning_hooks.transforms import TopK as TopK
    from lightning_hooks.transforms import Transform as Transform
    from lightning_hooks.transforms import TrustRatio as TrustRatio
    from lightning_hooks.transforms import When as When
    from lightning_hooks.transforms import ZClip as ZClip
    from lightning_hooks.transforms import Zero as Zero
    from lightning_hooks.transforms import ZeroNonFinite as ZeroNonFinite
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
    "capture": ("Capture", "load_capture"),
    "checks": ("Check", "CheckReport", "CheckResult"),
    "engine": ("Instrument", "assert_no_hooks", "instrument", "match", "paused"),
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
    "hooks.hook_point": ("HookPoint",),
    "hooks.ready_made": ("breakpoint_if_nonfinite", "print_shapes", "print_stats", "save_to"),
    "records": ("RunContext", "RunFacts", "StepConsumer", "StepView"),
    "rules": ("Apply", "Hook", "Watch"),
    "stats.accumulators": ("Accumulator",),
    "stats.columns": ("Column",),
    "tensorboard": ("Run", "read_run"),
    # `transforms` exports transforms only. This function imports its extra, torchjd, when it is called.
    "transforms.conflicts": ("aggregate_losses",),
    "transforms": (
        "AdaptiveClip",
        "AddDecayedWeights",
        "AddNoise",
        "AutoClip",
        "Centralize",
        "Chain",
        "ClipByBlockRMS",
        "ClipByGlobalNorm",
        "ClipByNorm",
        "ClipByValue",
        "Context",
        "Dropout",
        "EMA",
        "EverySteps",
        "FirstSteps",
        "Freeze",
        "Function",
        "KeepNonnegative",
        "Mask",
        "NormAbove",
        "NormalizeByNorm",
        "OrthoGrad",
        "Orthogonalize",
        "PerModuleClip",
        "ReverseGradient",
        "Scale",
        "ScaleByParamNorm",
        "ScaleByParamRMS",
        "ScaleBySchedule",
        "Sign",
        "SkipStep",
        "TopK",
        "Transform",
        "TrustRatio",
        "When",
        "ZClip",
        "Zero",
        "ZeroNonFinite",
    ),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__version__"]
