"""Shaping transforms give the same numbers as optax, on random trees in float32, except for deliberate differences."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_hooks.transforms import (
    EMA,
    AddDecayedWeights,
    AddNoise,
    Centralize,
    Context,
    Freeze,
    KeepNonnegative,
    Mask,
    Orthogonalize,
    Transform,
    Zero,
    ZeroNonFinite,
)

SHAPES = {"conv.weight": (4, 3, 2, 2), "conv.bias": (4,), "fc.weight": (6, 9), "tall.weight": (9, 4), "scale": ()}
NAMES = list(SHAPES)
STEPS = 4
Tree = dict[str, Any]


def tree(seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES, dtype: Any = np.float32) -> Tree:
    draw = np.random.default_rng(seed)
    return {name: np.asarray(draw.normal(size=shape) * 10.0 ** draw.integers(-3, 3), dtype) for name, shape in shapes.items()}


def theirs(transformation: Any, steps: list[Tree], params: Tree) -> list[Tree]:
    """The updates of optax for the gradients of each step, with constant parameters."""
    import jax.numpy as jnp

    live = {name: jnp.asarray(value) for name, value in params.items()}
    state, out = transformation.init(live), []
    for grads in steps:
        updates, state = transformation.update({name: jnp.asarray(value) for name, value in grads.items()}, state, live)
        out.append({name: np.asarray(value) for name, value in updates.items()})
    return out


def ours(transform: Transform, steps: list[Tree], params: Tree) -> list[Tree]:
    names = list(params)
    context = Context(names=names, params=[torch.from_numpy(np.array(params[name])) for name in names])
    out = []
    for step, grads in enumerate(steps):
        context.step = step
        given: list[Tensor] = [torch.from_numpy(np.array(grads[name])) for name in names]
        out.append({name: value.numpy() for name, value in zip(names, transform(given, context), strict=True)})
    return out


def agree(one: list[Tree], other: list[Tree], rel: float = 1e-6) -> None:
    """Compare with a tolerance of `rel` times the element, plus `rel` times the tensor's root mean square for cancellation."""
    assert len(one) == len(other) >= 3
    for a, b in zip(one, other, strict=True):
        for name in a:
            size = np.sqrt(np.mean(np.square(b[name], dtype=np.float64)))
            np.testing.assert_allclose(a[name], b[name], rtol=rel, atol=rel * float(size), err_msg=name)


GRADS = [tree(seed) for seed in range(STEPS)]
PARAMS = tree(100)


@pytest.mark.parametrize(
    ("transform", "of_optax"),
    [
        (Centralize(), lambda optax: optax.centralize()),
        (AddDecayedWeights(0.03), lambda optax: optax.add_decayed_weights(0.03)),
        (AddDecayedWeights(0.0), lambda optax: optax.add_decayed_weights(0.0)),
        (Zero(), lambda optax: optax.set_to_zero()),
        (Freeze(from_step=0), lambda optax: optax.freeze(True)),
        (Freeze(until_step=0), lambda optax: optax.freeze(False)),
    ],
    ids=lambda value: repr(value) if isinstance(value, Transform) else "",
)
def test_parity(optax: ModuleType, transform: Transform, of_optax: Callable[[Any], Any]) -> None:
    agree(ours(transform, GRADS, PARAMS), theirs(of_optax(optax), GRADS, PARAMS))


def test_mask_is_masked_set_to_zero(optax: ModuleType) -> None:
    frozen = {name: name.endswith("weight") for name in NAMES}
    mask = Mask({name: torch.tensor(not hidden) for name, hidden in frozen.items()})
    agree(ours(mask, GRADS, PARAMS), theirs(optax.masked(optax.set_to_zero(), frozen), GRADS, PARAMS))


@pytest.mark.parametrize(("dtype", "rel"), [(np.float64, 1e-12), (np.float32, 3e-5)])
def test_newton_schulz(optax: ModuleType, dtype: Any, rel: float) -> None:
    # An iteration multiplies a small singular value and its rounding error by 3.4, five iterations by 485. Two correct
    # float32 results may differ by this factor times the rounding error; float64 shows that the definitions are equal.
    import jax

    shapes = {"conv": (4, 3, 2, 2), "wide": (6, 9), "tall": (9, 4)}
    steps, params = [tree(seed, shapes, dtype) for seed in range(STEPS)], tree(100, shapes, dtype)
    axes = {name: optax.contrib.MuonDimensionNumbers() for name in shapes}
    axes["conv"] = optax.contrib.MuonDimensionNumbers(reduction_axis=(1, 2, 3), output_axis=0)
    # Without momentum, scale_by_muon applies only the iterations.
    muon = optax.contrib.scale_by_muon(beta=0.0, nesterov=False, eps=1e-7, weight_dimension_numbers=axes)
    with jax.enable_x64(dtype is np.float64):
        expected = theirs(muon, steps, params)
    assert all(value.dtype == dtype for out in expected for value in out.values())
    agree(ours(Orthogonalize(), steps, params), expected, rel)


def test_ema_is_optax_ema_begun_at_the_first_gradient(optax: ModuleType) -> None:
    decay, weight = 0.9, 2.0
    averages = theirs(optax.ema(decay, debias=False), GRADS, PARAMS)
    # The average of optax starts at 0: after t gradients it lacks decay**t times the first gradient.
    expected = [
        {name: grads[name] + weight * (average[name] + np.float32(decay**t) * GRADS[0][name]) for name in NAMES}
        for t, (grads, average) in enumerate(zip(GRADS, averages, strict=True), start=1)
    ]
    agree(ours(EMA(decay, weight=weight), GRADS, PARAMS), expected, rel=2e-6)


def test_ema_differs_from_the_debiased_one_after_the_first_step(optax: ModuleType) -> None:
    debiased = theirs(optax.ema(0.9), GRADS, PARAMS)
    results = ours(EMA(0.9, weight=1.0), GRADS, PARAMS)
    averages = [{name: out[name] - grads[name] for name in NAMES} for out, grads in zip(results, GRADS, strict=True)]
    np.testing.assert_allclose(averages[0]["fc.weight"], debiased[0]["fc.weight"], rtol=1e-5)
    assert np.abs(averages[1]["fc.weight"] - debiased[1]["fc.weight"]).max() > 0.1 * np.abs(debiased[1]["fc.weight"]).max()


def test_zero_nans(optax: ModuleType) -> None:
    steps = [
        {name: np.where(np.abs(value) < 0.5, np.float32(np.nan), value) for name, value in grads.items()} for grads in GRADS
    ]
    assert any(np.isnan(value).any() for value in steps[0].values())
    agree(ours(ZeroNonFinite(), steps, PARAMS), theirs(optax.zero_nans(), steps, PARAMS))


def test_zero_nans_leaves_infinity_and_ours_does_not(optax: ModuleType) -> None:
    steps = [{"w": np.asarray([np.inf, np.nan, 1.0], np.float32)}]
    assert theirs(optax.zero_nans(), steps, steps[0])[0]["w"].tolist() == [np.inf, 0.0, 1.0]
    assert ours(ZeroNonFinite(), steps, steps[0])[0]["w"].tolist() == [0.0, 0.0, 1.0]


def test_nonnegative_agrees_at_zero_under_sgd(optax: ModuleType) -> None:
    # optax changes the update -lr * g, KeepNonnegative the gradient g. Both are equal if every parameter is 0.
    params, lr = {name: np.zeros_like(value) for name, value in PARAMS.items()}, np.float32(0.1)
    updates = [{name: -lr * value for name, value in grads.items()} for grads in GRADS]
    results = [{name: -lr * value for name, value in out.items()} for out in ours(KeepNonnegative(), GRADS, params)]
    agree(results, theirs(optax.keep_params_nonnegative(), updates, params))


def test_nonnegative_differs_where_a_step_would_cross_zero(optax: ModuleType) -> None:
    params, grads = {"w": np.asarray([0.05, -1.0, -1.0], np.float32)}, [{"w": np.asarray([1.0, 1.0, -1.0], np.float32)}]
    (update,) = theirs(optax.keep_params_nonnegative(), [{"w": -0.1 * grads[0]["w"]}], params)
    assert update["w"].tolist() == pytest.approx([-0.05, 1.0, 1.0])  # each parameter ends at exactly 0, also from below
    assert ours(KeepNonnegative(), grads, params)[0]["w"].tolist() == [1.0, 0.0, -1.0]


def test_noise_has_the_variance_of_optax(optax: ModuleType) -> None:
    eta, gamma, size = 0.3, 0.55, 200_000
    steps, params = [{"w": np.zeros(size, np.float32)}] * 3, {"w": np.zeros(size, np.float32)}
    drawn = theirs(optax.add_noise(eta, gamma, key=0), steps, params)
    results = ours(AddNoise(std=eta**0.5, decay=gamma), steps, params)
    for step, (a, b) in enumerate(zip(results, drawn, strict=True)):
        # optax counts steps from 1 and divides by count**gamma: at step t from 0, both variances are eta / (1 + t)**gamma.
        assert AddNoise(std=eta**0.5, decay=gamma).std_at(step) == pytest.approx((eta / (1 + step) ** gamma) ** 0.5)
        assert a["w"].std() == pytest.approx(b["w"].std(), rel=1e-2)
