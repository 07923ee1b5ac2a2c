"""Clipping and scaling give the same numbers as optax, on random trees in float32 over several steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.transforms import (
    AdaptiveClip,
    ClipByBlockRMS,
    ClipByGlobalNorm,
    ClipByValue,
    Context,
    NormalizeByNorm,
    Scale,
    ScaleByParamNorm,
    ScaleByParamRMS,
    ScaleBySchedule,
    Sign,
    SkipStep,
    Transform,
    TrustRatio,
    ZeroNonFinite,
)

SHAPES = [(7, 5), (3, 4, 2, 2), (6,), (), (2, 3, 4), (1, 5), (4, 1)]
STEPS = 4


def tree(seed: int, size: float = 1.0, shapes: list[tuple[int, ...]] | None = None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * size * 3.0**i for i, shape in enumerate(shapes or SHAPES)]


def compare(
    theirs: Any,
    ours: Transform,
    params: list[Tensor] | None = None,
    sizes: tuple[float, ...] = (0.01, 1.0, 30.0, 0.3),
    alter: Callable[[list[Tensor]], None] = lambda tensors: None,
) -> None:
    """Apply both transforms to the same gradients for several steps, each with its own state, and compare the results."""
    params = tree(100, 0.5) if params is None else params
    their_params = [value.numpy() for value in params]
    their_state = theirs.init(their_params)
    context = Context(params=list(params), names=[f"layer{i}.weight" for i in range(len(params))], state=ours.initial_state())
    for step in range(STEPS):
        gradients = tree(step, sizes[step], [tuple(value.shape) for value in params])
        alter(gradients)
        expected, their_state = theirs.update([value.numpy() for value in gradients], their_state, their_params)
        context.step = step
        for new, other in zip(ours(gradients, context), expected, strict=True):
            np.testing.assert_allclose(new.numpy(), np.asarray(other), rtol=1e-6, atol=1e-30)


def test_clip(optax: Any) -> None:
    compare(optax.clip(0.4), ClipByValue(-0.4, max=0.4))


def test_clip_by_block_rms(optax: Any) -> None:
    compare(optax.clip_by_block_rms(0.7), ClipByBlockRMS(0.7))


def test_clip_by_global_norm(optax: Any) -> None:
    # ClipByGlobalNorm adds 1e-6 to the norm, as torch does: above a norm of 10, the relative difference is below 1e-7.
    compare(optax.clip_by_global_norm(12.0), ClipByGlobalNorm(12.0))


def test_clip_by_global_norm_differs_for_small_norms(optax: Any) -> None:
    value = torch.tensor([3e-5, 4e-5])
    theirs, _ = optax.clip_by_global_norm(1e-5).update([value.numpy()], (), None)
    (ours,) = ClipByGlobalNorm(1e-5)([value], Context())
    assert float(np.linalg.norm(theirs[0])) == pytest.approx(1e-5, rel=1e-6)
    assert ours.norm().item() == pytest.approx(1e-5 * 5e-5 / (5e-5 + 1e-6), rel=1e-6)


@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 2, 2), (3, 2, 2, 2, 2), (1, 5), (4, 1), (6,), (), (5, 1, 1)])
def test_adaptive_grad_clip(optax: Any, shape: tuple[int, ...]) -> None:
    # JAX has the outputs in the last dimension. Compare the same tree in both layouts.
    params = [torch.randn(shape, generator=torch.Generator().manual_seed(7)) * 0.2, torch.zeros(shape)]
    theirs, ours = optax.adaptive_grad_clip(0.05), AdaptiveClip(0.05)

    def last(value: Tensor) -> Tensor:
        return value.movedim(0, -1) if value.dim() > 1 else value

    def first(value: Tensor) -> Tensor:
        return value.movedim(-1, 0) if value.dim() > 1 else value

    state = theirs.init([last(value).numpy() for value in params])
    for step, size in enumerate((1e-3, 0.05, 3.0)):
        gradients = tree(step, size, [shape, shape])
        expected, state = theirs.update([last(g).numpy() for g in gradients], state, [last(p).numpy() for p in params])
        for new, other in zip(ours(gradients, Context(params=list(params))), expected, strict=True):
            np.testing.assert_allclose(new.numpy(), first(torch.tensor(np.asarray(other))).numpy(), rtol=1e-6)


def test_adaptive_grad_clip_of_three_dimensions_is_a_convolution(optax: Any) -> None:
    params = tree(7, 0.2, [(3, 4, 5)])
    compare(optax.adaptive_grad_clip(0.05, axis=(1, 2)), AdaptiveClip(0.05), params)
    compare(optax.adaptive_grad_clip(0.05, axis=(0, 2)), AdaptiveClip(0.05, unit_dim=1), params)


@pytest.mark.parametrize("scale", [1.0, -0.3])
def test_normalize_by_update_norm(optax: Any, scale: float) -> None:
    compare(optax.normalize_by_update_norm(scale, eps=1e-3), NormalizeByNorm(scale, eps=1e-3))
    compare(optax.normalize_by_update_norm(scale), NormalizeByNorm(scale))


def test_scale_by_sign(optax: Any) -> None:
    def alter(tensors: list[Tensor]) -> None:
        tensors[0][0, :3] = torch.tensor([float("nan"), 0.0, -float("inf")])

    compare(optax.scale_by_sign(), Sign(), alter=alter)


@pytest.mark.parametrize(("min_norm", "coefficient", "eps"), [(0.0, 1.0, 0.0), (0.5, 1e-3, 0.1)])
def test_scale_by_trust_ratio(optax: Any, min_norm: float, coefficient: float, eps: float) -> None:
    def alter(tensors: list[Tensor]) -> None:
        tensors[1].zero_()

    params = tree(100, 0.5)
    params[2].zero_()
    theirs = optax.scale_by_trust_ratio(min_norm, coefficient, eps)
    compare(theirs, TrustRatio(min_norm, trust_coefficient=coefficient, eps=eps), params, alter=alter)


def test_scale_by_param_block_norm(optax: Any) -> None:
    params = tree(100, 0.5)
    params[2].zero_()
    compare(optax.scale_by_param_block_norm(), ScaleByParamNorm(), params)
    compare(optax.scale_by_param_block_norm(20.0), ScaleByParamNorm(20.0), params)


def test_scale_by_param_block_rms(optax: Any) -> None:
    params = tree(100, 0.5)
    params[2].zero_()
    compare(optax.scale_by_param_block_rms(), ScaleByParamRMS(), params)
    compare(optax.scale_by_param_block_rms(2.0), ScaleByParamRMS(2.0), params)


def test_scale(optax: Any) -> None:
    compare(optax.scale(-0.3), Scale(-0.3))


def test_scale_by_schedule(optax: Any) -> None:
    theirs = optax.scale_by_schedule(optax.piecewise_interpolate_schedule("linear", 2.0, {2: 0.25, 3: 4.0}))
    compare(theirs, ScaleBySchedule(points=[(0, 2.0), (2, 0.5), (3, 2.0)]))
    compare(optax.scale_by_schedule(lambda step: 1 / (1 + step)), ScaleBySchedule(call=lambda step: 1 / (1 + step)))


def test_zero_nans(optax: Any) -> None:
    def alter(tensors: list[Tensor]) -> None:
        tensors[0][0, :2] = float("nan")

    compare(optax.transforms.zero_nans(), ZeroNonFinite(), alter=alter)


def test_zero_nans_differs_for_infinity(optax: Any) -> None:
    value = torch.tensor([float("inf"), 2.0])
    theirs, _ = optax.transforms.zero_nans().update([value.numpy()], None)
    assert np.isinf(np.asarray(theirs[0])).tolist() == [True, False]
    assert ZeroNonFinite()([value], Context())[0].tolist() == [0.0, 2.0]


def test_apply_if_finite_gives_up_where_skip_step_raises(optax: Any) -> None:
    theirs = optax.apply_if_finite(optax.identity(), max_consecutive_errors=2)
    ours, context = SkipStep(max_consecutive=2), Context()
    good, bad = torch.tensor([1.0]), torch.tensor([float("nan")])
    state = theirs.init([good.numpy()])
    for value, skipped in [(bad, True), (good, False), (bad, True), (bad, True)]:
        updates, state = theirs.update([value.numpy()], state)
        context.skip_reason = None
        ours([value], context)
        assert (context.skip_reason is not None) is skipped
        # If optax skips a step, its update is zero.
        assert np.asarray(updates[0]).tolist() == ([0.0] if skipped else [1.0])
    updates, state = theirs.update([bad.numpy()], state)
    assert np.isnan(np.asarray(updates[0])).all()
    with pytest.raises(TransformError, match="number 3 in a row and more than max_consecutive=2"):
        ours([bad], context)
