"""Transforms, which change gradients and activations: the base class, and the transforms of the package."""

from lightning_hooks.transforms.adaptive import AdaptiveClip, ClipByBlockRMS, PerModuleClip
from lightning_hooks.transforms.base import Context, Transform
from lightning_hooks.transforms.clipping import ClipByGlobalNorm, ClipByNorm, ClipByValue
from lightning_hooks.transforms.combinators import Chain, When
from lightning_hooks.transforms.conditions import EverySteps, FirstSteps, NormAbove
from lightning_hooks.transforms.ema import EMA
from lightning_hooks.transforms.freezing import Freeze
from lightning_hooks.transforms.function import Function
from lightning_hooks.transforms.history import AutoClip, ZClip
from lightning_hooks.transforms.masking import Mask
from lightning_hooks.transforms.noise import AddNoise
from lightning_hooks.transforms.orthogonalize import Orthogonalize
from lightning_hooks.transforms.repair import ZeroNonFinite
from lightning_hooks.transforms.scaling import NormalizeByNorm, Scale, ScaleBySchedule
from lightning_hooks.transforms.shaping import AddDecayedWeights, Centralize, KeepNonnegative, OrthoGrad
from lightning_hooks.transforms.signs import ReverseGradient, Sign
from lightning_hooks.transforms.skipping import SkipStep
from lightning_hooks.transforms.sparsity import Dropout, TopK, Zero
from lightning_hooks.transforms.trust import ScaleByParamNorm, ScaleByParamRMS, TrustRatio

__all__ = [
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
]
