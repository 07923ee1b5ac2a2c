"""Chains, conditions, masks and skipped steps give the same numbers as optax."""

from types import ModuleType
from typing import Any

import numpy as np
import torch

from lightning_hooks.transforms import (
    AddDecayedWeights,
    Centralize,
    Chain,
    ClipByValue,
    Context,
    EverySteps,
    FirstSteps,
    Function,
    Mask,
    NormalizeByNorm,
    ReverseGradient,
    Scale,
    ScaleByParamRMS,
    SkipStep,
    When,
)
from tests.transforms.test_optax_shaping import GRADS, NAMES, PARAMS, agree, ours, theirs


def test_chain(optax: ModuleType) -> None:
    members = [ClipByValue(-0.4, max=0.4), AddDecayedWeights(0.1), ScaleByParamRMS(), Scale(-0.3)]
    steps = [optax.clip(0.4), optax.add_decayed_weights(0.1), optax.scale_by_param_block_rms(), optax.scale(-0.3)]
    expected = theirs(optax.chain(*steps), GRADS, PARAMS)
    agree(ours(Chain(members), GRADS, PARAMS), expected)
    named = optax.named_chain(*((str(index), step) for index, step in enumerate(steps)))
    agree(theirs(named, GRADS, PARAMS), expected)
    agree(ours(Chain([Chain(members[:2]), Chain(members[2:])]), GRADS, PARAMS), expected)


def test_masked_is_a_rule_on_names(optax: ModuleType) -> None:
    # The `params=` of a rule selects the parameters of its transform: the transform does not receive other parameters.
    weights = {name: name.endswith("weight") for name in NAMES}
    chosen = [{name: value for name, value in grads.items() if weights[name]} for grads in GRADS]
    results = ours(Centralize(), chosen, {name: value for name, value in PARAMS.items() if weights[name]})
    # optax.centralize, like Centralize, takes the mean over all axes but the first.
    expected = theirs(optax.masked(optax.centralize(), weights), GRADS, PARAMS)
    agree([{**grads, **out} for grads, out in zip(GRADS, results, strict=True)], expected)


def test_mask_of_elements_is_a_product(optax: ModuleType) -> None:
    kept = {name: np.random.default_rng(5).random(value.shape) < 0.5 for name, value in PARAMS.items()}

    def update(updates: Any, params: Any = None) -> Any:
        return {name: value * kept[name] for name, value in updates.items()}

    mask = Mask({name: torch.from_numpy(np.asarray(value)) for name, value in kept.items()})
    agree(ours(mask, GRADS, PARAMS), theirs(optax.stateless(update), GRADS, PARAMS))


def test_when_is_conditionally_transform(optax: ModuleType) -> None:
    scale = optax.scale(0.1)
    first = optax.conditionally_transform(scale, lambda step, **extra: step < 2)
    agree(ours(When(FirstSteps(2), transform=Scale(0.1)), GRADS, PARAMS), theirs(first, GRADS, PARAMS))
    every = optax.conditionally_transform(scale, lambda step, **extra: (step + 1) % 3 == 0)
    agree(ours(When(EverySteps(3), transform=Scale(0.1)), GRADS, PARAMS), theirs(every, GRADS, PARAMS))


def test_when_differs_from_conditionally_mask(optax: ModuleType) -> None:
    masked = theirs(optax.conditionally_mask(optax.scale(0.1), lambda step, **extra: step < 2), GRADS, PARAMS)
    results = ours(When(FirstSteps(2), transform=Scale(0.1)), GRADS, PARAMS)
    agree([*results[:2], *results[:2]], [*masked[:2], *masked[:2]])
    assert not masked[2]["fc.weight"].any() and np.array_equal(results[2]["fc.weight"], GRADS[2]["fc.weight"])


def test_function_is_stateless(optax: ModuleType) -> None:
    import jax.numpy as jnp

    expected = theirs(optax.stateless_with_tree_map(lambda grad, param: jnp.tanh(grad)), GRADS, PARAMS)
    agree(ours(Function("torch.tanh"), GRADS, PARAMS), expected)


def skipped(transform: SkipStep, grads: Any) -> bool:
    context = Context()
    transform([torch.from_numpy(np.array(value)) for value in grads.values()], context)
    return context.skip_reason is not None


def test_skips_what_optax_skips(optax: ModuleType) -> None:
    for step, grads in enumerate(GRADS):
        norm = float(optax.tree.norm(grads))
        bad = {**grads, "fc.weight": np.where(grads["fc.weight"] > 1, np.float32(np.inf), np.nan)}
        for value in (grads, bad):
            assert skipped(SkipStep(), value) is bool(optax.skip_not_finite(value, step, PARAMS)[0])
        for limit in (0.99 * norm, 1.01 * norm):
            # optax compares the square of the norm.
            theirs_skips = bool(optax.skip_large_updates(grads, step, PARAMS, max_squared_norm=limit**2)[0])
            assert skipped(SkipStep(if_norm_above=limit), grads) is theirs_skips is (limit < norm)


def test_normalize(optax: ModuleType) -> None:
    agree(ours(NormalizeByNorm(eps=0.0), GRADS, PARAMS), theirs(optax.contrib.normalize(), GRADS, PARAMS))


def test_reverse_gradient_is_scale_gradient(optax: ModuleType) -> None:
    import jax

    for grads in GRADS:
        # The gradient of sum(g * x) with respect to x is g.
        expected = jax.grad(lambda x, g=grads: sum((g[name] * y).sum() for name, y in optax.scale_gradient(x, -0.3).items()))(
            PARAMS
        )
        results = ours(ReverseGradient(0.3), [grads] * 3, PARAMS)
        agree(results, [{name: np.asarray(value) for name, value in expected.items()}] * 3)
