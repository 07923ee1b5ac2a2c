"""Transforms, which change gradients and activations: the base class, and the transforms of the package.

Each is loaded on first use, so that a command can list their names without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_hooks.transforms.adaptive import AdaptiveClip as AdaptiveClip
    from lightning_hooks.transforms.adaptive import ClipByBlockRMS as ClipByBlockRMS
    from lightning_hooks.transforms.adaptive import PerModuleClip as PerModuleClip
    from lightning_hooks.transforms.base import Context as Context
    from lightning_hooks.transforms.base import Transform as Transform
    from lightning_hooks.transforms.clipping import ClipByGlobalNorm as ClipByGlobalNorm
    from lightning_hooks.transforms.clipping import ClipByNorm as ClipByNorm
    from lightning_hooks.transforms.clipping import ClipByValue as ClipByValue
    from lightning_hooks.transforms.combinators import Chain as Chain
    from lightning_hooks.transforms.combinators import When as When
    from lightning_hooks.transforms.conditions import EverySteps as EverySteps
    from lightning_hooks.transforms.conditions import FirstSteps as FirstSteps
    from lightning_hooks.transforms.conditions import NormAbove as NormAbove
    from lightning_hooks.transforms.ema import EMA as EMA
    from lightning_hooks.transforms.freezing import Freeze as Freeze
    from lightning_hooks.transforms.function import Function as Function
    from lightning_hooks.transforms.history import AutoClip as AutoClip
    from lightning_hooks.transforms.history import ZClip as ZClip
    from lightning_hooks.transforms.masking import Mask as Mask
    from lightning_hooks.transforms.noise import AddNoise as AddNoise
    from lightning_hooks.transforms.orthogonalize import Orthogonalize as Orthogonalize
    from lightning_hooks.transforms.repair import ZeroNonFinite as ZeroNonFinite
    from lightning_hooks.transforms.scaling import NormalizeByNorm as NormalizeByNorm
    from lightning_hooks.transforms.scaling import Scale as Scale
    from lightning_hooks.transforms.scaling import ScaleBySchedule as ScaleBySchedule
    from lightning_hooks.transforms.shaping import AddDecayedWeights as AddDecayedWeights
    from lightning_hooks.transforms.shaping import Centralize as Centralize
    from lightning_hooks.transforms.shaping import KeepNonnegative as KeepNonnegative
    from lightning_hooks.transforms.shaping import OrthoGrad as OrthoGrad
    from lightning_hooks.transforms.signs import ReverseGradient as ReverseGradient
    from lightning_hooks.transforms.signs import Sign as Sign
    from lightning_hooks.transforms.skipping import SkipStep as SkipStep
    from lightning_hooks.transforms.sparsity import Dropout as Dropout
    from lightning_hooks.transforms.sparsity import TopK as TopK
    from lightning_hooks.transforms.sparsity import Zero as Zero
    from lightning_hooks.transforms.trust import ScaleByParamNorm as ScaleByParamNorm
    from lightning_hooks.transforms.trust import ScaleByParamRMS as ScaleByParamRMS
    from lightning_hooks.transforms.trust import TrustRatio as TrustRatio

_PUBLIC = {
    "adaptive": ("AdaptiveClip", "ClipByBlockRMS", "PerModuleClip"),
    "base": ("Context", "Transform"),
    "clipping": ("ClipByGlobalNorm", "ClipByNorm", "ClipByValue"),
    "combinators": ("Chain", "When"),
    "conditions": ("EverySteps", "FirstSteps", "NormAbove"),
    "ema": ("EMA",),
    "freezing": ("Freeze",),
    "function": ("Function",),
    "history": ("AutoClip", "ZClip"),
    "masking": ("Mask",),
    "noise": ("AddNoise",),
    "orthogonalize": ("Orthogonalize",),
    "repair": ("ZeroNonFinite",),
    "scaling": ("NormalizeByNorm", "Scale", "ScaleBySchedule"),
    "shaping": ("AddDecayedWeights", "Centralize", "KeepNonnegative", "OrthoGrad"),
    "signs": ("ReverseGradient", "Sign"),
    "skipping": ("SkipStep",),
    "sparsity": ("Dropout", "TopK", "Zero"),
    "trust": ("ScaleByParamNorm", "ScaleByParamRMS", "TrustRatio"),
}
_FILES = {name: file for file, names in _PUBLIC.items() for name in names}
__all__ = sorted(_FILES)


def __getattr__(name: str) -> Any:
    """Load a transform on first use."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)
    globals()[name] = value
    return value
