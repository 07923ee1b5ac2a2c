"""Log statistics of every layer and parameter during training, and change gradients by rules.

The public names load on first use (PEP 562): importing the package loads neither torch nor Lightning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_hooks.callbacks import ActivationCapture, ActivationTransforms, CustomHooks, GradientTransforms, StatsMonitor
    from lightning_hooks.capture import Capture, load_capture
    from lightning_hooks.engine import Instrument, assert_no_hooks, instrument, match, paused
    from lightning_hooks.engine.user_hooks.ready_made import breakpoint_if_nonfinite, print_shapes, print_stats, save_to
    from lightning_hooks.errors import (
        HookError,
        HooksError,
        HooksLeftError,
        InPlaceError,
        NoMatchError,
        RuleError,
        TransformError,
        UnsupportedError,
    )
    from lightning_hooks.hooks.hook_point import HookPoint
    from lightning_hooks.records import StepConsumer, StepView
    from lightning_hooks.rules import Apply, Hook, Watch
    from lightning_hooks.tensorboard import Run, read_run
    from lightning_hooks.transforms import (
        EMA,
        AdaptiveClip,
        AddDecayedWeights,
        AddNoise,
        AutoClip,
        Centralize,
        Chain,
        ClipByBlockRMS,
        ClipByGlobalNorm,
        ClipByNorm,
        ClipByValue,
        Context,
        Dropout,
        EverySteps,
        FirstSteps,
        Freeze,
        Function,
        KeepNonnegative,
        Mask,
        NormAbove,
        NormalizeByNorm,
        Orthogonalize,
        OrthoGrad,
        PerModuleClip,
        ReverseGradient,
        Scale,
        ScaleByParamNorm,
        ScaleByParamRMS,
        ScaleBySchedule,
        Sign,
        SkipStep,
        TopK,
        Transform,
        TrustRatio,
        When,
        ZClip,
        Zero,
        ZeroNonFinite,
    )
    from lightning_hooks.transforms.conflicts import aggregate_losses

__version__ = "0.1.0"

_MODULES = {
    "callbacks": (
        "ActivationCapture",
        "ActivationTransforms",
        "CustomHooks",
        "GradientTransforms",
        "StatsMonitor",
    ),
    "engine.user_hooks.ready_made": (
        "breakpoint_if_nonfinite",
        "print_shapes",
        "print_stats",
        "save_to",
    ),
    "capture": (
        "Capture",
        "load_capture",
    ),
    "engine": (
        "Instrument",
        "assert_no_hooks",
        "instrument",
        "match",
        "paused",
    ),
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
    "records": (
        "StepConsumer",
        "StepView",
    ),
    "rules": (
        "Apply",
        "Hook",
        "Watch",
    ),
    "tensorboard": (
        "Run",
        "read_run",
    ),
    "transforms.conflicts": ("aggregate_losses",),  # no transform, and its extra may be missing
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
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ActivationCapture",
    "ActivationTransforms",
    "AdaptiveClip",
    "AddDecayedWeights",
    "AddNoise",
    "Apply",
    "AutoClip",
    "Capture",
    "Centralize",
    "Chain",
    "ClipByBlockRMS",
    "ClipByGlobalNorm",
    "ClipByNorm",
    "ClipByValue",
    "Context",
    "CustomHooks",
    "Dropout",
    "EMA",
    "EverySteps",
    "FirstSteps",
    "Freeze",
    "Function",
    "GradientTransforms",
    "Hook",
    "HookError",
    "HookPoint",
    "HooksError",
    "HooksLeftError",
    "InPlaceError",
    "Instrument",
    "KeepNonnegative",
    "Mask",
    "NoMatchError",
    "NormAbove",
    "NormalizeByNorm",
    "OrthoGrad",
    "Orthogonalize",
    "PerModuleClip",
    "ReverseGradient",
    "RuleError",
    "Run",
    "Scale",
    "ScaleByParamNorm",
    "ScaleByParamRMS",
    "ScaleBySchedule",
    "Sign",
    "SkipStep",
    "StatsMonitor",
    "StepConsumer",
    "StepView",
    "TopK",
    "Transform",
    "TransformError",
    "TrustRatio",
    "UnsupportedError",
    "Watch",
    "When",
    "ZClip",
    "Zero",
    "ZeroNonFinite",
    "aggregate_losses",
    "assert_no_hooks",
    "breakpoint_if_nonfinite",
    "instrument",
    "load_capture",
    "match",
    "paused",
    "print_shapes",
    "print_stats",
    "read_run",
    "save_to",
]


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
