"""What is done to a tensor: the contract of a transform, and those that come with the package."""

from lightning_hooks.transforms.base import Context, Transform
from lightning_hooks.transforms.clipping import ClipByGlobalNorm, ClipByNorm, ClipByValue
from lightning_hooks.transforms.function import Function
from lightning_hooks.transforms.noise import AddNoise
from lightning_hooks.transforms.repair import ZeroNonFinite
from lightning_hooks.transforms.scaling import Scale
from lightning_hooks.transforms.sparsity import Zero

__all__ = [
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
]
