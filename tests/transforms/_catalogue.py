"""An example of every transform, and helpers of the tests that run on every transform."""

import math
import re

import pytest
import torch
from torch import Tensor

import lightning_hooks.transforms as package
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


def small_ones(name: str, value: Tensor) -> Tensor:
    """Return a mask that depends on the tensor."""
    dense = value.to_dense() if value.is_sparse else value
    return dense.abs() < 0.5


def halving(step: int) -> float:
    """A schedule that halves at every step."""
    return 0.5**step


EXAMPLES: list[Transform] = [
    # Clipping.
    ClipByValue(-0.5, max=0.7),
    ClipByValue(max=1e6),
    ClipByNorm(0.9),
    ClipByNorm(0.9, norm_type=math.inf),
    ClipByGlobalNorm(1.1),
    ClipByGlobalNorm(1.1, norm_type=math.inf),
    ClipByBlockRMS(0.6),
    AdaptiveClip(0.05),
    AutoClip(percentile=50),
    AutoClip(history=2),
    ZClip(warmup=2, z_thresh=0.5),
    PerModuleClip(0.8),
    # Scaling.
    Scale(0.3),
    ScaleBySchedule(points=[(0, 1.0), (10, 0.0)]),
    ScaleBySchedule(call=f"{__name__}.halving"),
    NormalizeByNorm(),
    NormalizeByNorm(scale=2.0, per_tensor=True),
    Sign(),
    TrustRatio(),
    ScaleByParamNorm(),
    ScaleByParamRMS(),
    ReverseGradient(0.5),
    ReverseGradient([(0, 0.0), (10, 1.0)]),
    # Noise and sparsity.
    AddNoise(0.1, decay=0.55),
    Dropout(0.4),
    TopK(fraction=0.3),
    TopK(k=2),
    Mask(torch.tensor(0.5)),
    Mask({f"layer{i}.weight": torch.tensor(True) for i in range(6)}),
    Mask(f"{__name__}.small_ones"),
    Zero(),
    Zero(index=-1, dim=-1),
    Zero(index=0, dim=0),
    Freeze(until_step=9),
    Freeze(from_step=9),
    # Shaping.
    Centralize(),
    Orthogonalize(),
    OrthoGrad(),
    EMA(decay=0.9),
    AddDecayedWeights(0.1),
    KeepNonnegative(),
    # Repair.
    ZeroNonFinite(),
    SkipStep(if_norm_above=1.0),
    # Combinators.
    Chain([Scale(2.0), EMA(), AddNoise(0.1), ClipByNorm(1.0)]),
    When(FirstSteps(9), transform=Dropout(0.5)),
    When(EverySteps(3), transform=EMA()),
    When(NormAbove(1.0), transform=Chain([EMA(), ClipByGlobalNorm(1.0)])),
    When(NormAbove(1.0), transform=SkipStep()),
    Function("torch.neg"),
]
"""Transforms whose `repr` is an expression that creates an equal transform."""

DENSE_ONLY = (AdaptiveClip, OrthoGrad, AddDecayedWeights, Orthogonalize, EMA)
REAL_ONLY = (ClipByValue, KeepNonnegative)


def label(transform: Transform) -> str:
    """The `repr` without memory addresses: pytest-xdist needs the same test ids in every process."""
    return re.sub(r" at 0x\w+", "", repr(transform))


each = pytest.mark.parametrize("transform", EXAMPLES, ids=label)


def every_transform() -> set[str]:
    """The names of the exported transforms."""
    kinds = {name: getattr(package, name) for name in package.__all__}
    return {name for name, kind in kinds.items() if issubclass(kind, Transform) and kind is not Transform}


def members(transform: Transform) -> list[Transform]:
    """The transform itself, and all transforms that it contains."""
    children = [*getattr(transform, "transforms", ()), *([transform.transform] if isinstance(transform, When) else ())]
    return [transform, *(inner for child in children for inner in members(child))]


def has(transform: Transform, *kinds: type[Transform]) -> bool:
    """Whether the transform, or one that it contains, is of one of these classes."""
    return any(isinstance(member, kinds) for member in members(transform))


def usable(transform: Transform, value: Tensor) -> bool:
    """Whether the transform accepts the tensor; separate tests cover the errors for other tensors."""
    if isinstance(transform, Zero) and transform.index is not None:
        return value.dim() > 0 and value.shape[transform.dim] > 0
    return not (value.is_sparse and has(transform, *DENSE_ONLY))


def context_of(tensors: list[Tensor], owned: bool = False, step: int = 2) -> Context:
    """A context with a parameter and a name for each tensor."""
    generator = torch.Generator().manual_seed(3)
    params: list[Tensor | None] = [
        torch.randn(value.shape, generator=generator, dtype=torch.float32 if value.dtype.itemsize < 4 else value.dtype)
        for value in tensors
    ]
    return Context(names=[f"layer{i}.weight" for i in range(len(tensors))], params=params, step=step, seed=5, owned=owned)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are bit-equal, except that any NaN equals any NaN; 0 and -0 differ."""
    if a.is_sparse:
        a, b = a.coalesce(), b.coalesce()
        return torch.equal(a.indices(), b.indices()) and same(a.values(), b.values())
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    # NaN has many bit patterns, and vectorised and scalar code may produce different ones. Compare only the positions of NaN.
    numbers = ~a.isnan()
    return (
        torch.equal(a.isnan(), b.isnan())
        and torch.equal(a[numbers], b[numbers])
        and torch.equal(a[numbers].signbit(), b[numbers].signbit())
    )
