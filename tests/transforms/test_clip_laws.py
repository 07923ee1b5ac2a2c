"""Laws of all clipping transforms: no element grows, and tensors below the limit stay bit-equal."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_hooks.transforms import (
    AdaptiveClip,
    AutoClip,
    ClipByBlockRMS,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    PerModuleClip,
    Transform,
    ZClip,
)
from tests.transforms._catalogue import context_of, same

CLIPS: list[Transform] = [
    ClipByValue(-0.5, max=0.5),
    ClipByNorm(0.9),
    ClipByNorm(0.9, norm_type=1.0),
    ClipByGlobalNorm(1.1),
    ClipByGlobalNorm(1.1, norm_type=float("inf")),
    ClipByBlockRMS(0.6),
    AdaptiveClip(0.05),
    AutoClip(percentile=30),
    ZClip(warmup=1, z_thresh=0.5),
    PerModuleClip(0.8),
]
clips = pytest.mark.parametrize("transform", CLIPS, ids=repr)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
shapes = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=4)


def drawn(shapes: list[tuple[int, ...]], seed: int, size: float, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=generator) * size).to(dtype) for shape in shapes]


@clips
@settings(max_examples=40, deadline=None)
@given(
    shapes=shapes, seed=st.integers(0, 2**31), dtype=st.sampled_from(DTYPES), sizes=st.lists(st.floats(1e-3, 1e3), min_size=2)
)
def test_no_element_grows_or_turns(
    transform: Transform, shapes: list[tuple[int, ...]], seed: int, dtype: torch.dtype, sizes: list[float]
) -> None:
    context = context_of(drawn(shapes, seed, 1.0, dtype))
    for step, size in enumerate(sizes):
        tensors = drawn(shapes, seed + step, size, dtype)
        context.step = step
        for new, old in zip(transform(tensors, context), tensors, strict=True):
            # Compare elements instead of norms: this is stronger, and a norm would be rounded.
            assert (new.abs() <= old.abs()).all() and (new * old >= 0).all()


@clips
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("owned", [False, True])
def test_tensors_below_the_limit_stay_bit_equal(transform: Transform, dtype: torch.dtype, owned: bool) -> None:
    context = context_of(drawn([(4, 3), (5,), ()], 0, 1.0, dtype), owned)
    # The limits of AutoClip and ZClip depend on the norms of these steps.
    for step, size in enumerate((3.0, 1.0)):
        context.step = step
        transform(drawn([(4, 3), (5,), ()], step, size, dtype), context)
    small = drawn([(4, 3), (5,), ()], 7, 1e-3, dtype)
    if isinstance(transform, AutoClip):
        # Add a smaller norm to the history, so that the percentile is not the minimum.
        transform([value * 0.5 for value in small], context)
        transform = AutoClip(percentile=90)
    expected = [value.clone() for value in small]
    assert all(map(same, transform(small, context), expected))


@clips
def test_tensors_above_the_limit_are_clipped(transform: Transform) -> None:
    context = context_of(drawn([(4, 3), (5,)], 0, 1.0, torch.float32))
    for step, size in enumerate((1.0, 1.1)):
        transform(drawn([(4, 3), (5,)], step, size, torch.float32), context)
    large = drawn([(4, 3), (5,)], 7, 100.0, torch.float32)
    for new, old in zip(transform(large, context), large, strict=True):
        assert new.norm() < 0.5 * old.norm()
