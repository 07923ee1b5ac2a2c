"""Transforms as values: equality, `repr`, copies, and their state in a checkpoint."""

import copy
import dataclasses
import io
import math
import pickle

import pytest
import torch
from torch import Tensor

import lightning_hooks.transforms as package
from lightning_hooks.transforms import EMA, AutoClip, Context, EverySteps, FirstSteps, NormAbove, Transform, ZClip
from tests.transforms._catalogue import EXAMPLES, context_of, each, has, label, same

TYPED = {name: getattr(package, name) for name in package.__all__} | {"inf": math.inf, "tensor": torch.tensor}


@each
def test_repr_can_be_typed_back_in(transform: Transform) -> None:
    assert eval(repr(transform), TYPED) == transform


@pytest.mark.parametrize("condition", [FirstSteps(3), EverySteps(3), NormAbove(1.5, norm_type=math.inf)], ids=repr)
def test_conditions_too(condition: object) -> None:
    assert eval(repr(condition), TYPED) == condition == pickle.loads(pickle.dumps(condition))


@each
def test_value_object(transform: Transform) -> None:
    for copied in (pickle.loads(pickle.dumps(transform)), copy.deepcopy(transform)):
        assert copied == transform and copied.needs_all == transform.needs_all and hash(copied) is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        transform.anything = 1  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(transform.initial_state())) == transform.initial_state()


def test_no_two_examples_are_equal() -> None:
    for transform in EXAMPLES:
        assert [other == transform for other in EXAMPLES].count(True) == 1, label(transform)


def saved(context: Context, how: str) -> bytes:
    """The state and the generators of a context, serialised as in a checkpoint."""
    generators = {key: generator.get_state() for key, generator in context.generators.items()}
    kept = {"state": context.state, "generators": generators}
    if how == "pickle":
        return pickle.dumps(kept)
    buffer = io.BytesIO()
    torch.save(kept, buffer)
    return buffer.getvalue()


def restored(content: bytes, how: str, tensors: list[Tensor]) -> Context:
    context = context_of(tensors)
    # torch.load reads only plain containers and tensors with `weights_only`.
    kept = pickle.loads(content) if how == "pickle" else torch.load(io.BytesIO(content), weights_only=True)
    context.state = kept["state"]
    for key, state in kept["generators"].items():
        context.generators[key] = torch.Generator(torch.device(key))
        context.generators[key].set_state(state)
    return context


@each
@pytest.mark.parametrize(("stop", "how"), [(1, "pickle"), (3, "pickle"), (3, "checkpoint")])
def test_resumes_bit_equal_in_the_middle(transform: Transform, stop: int, how: str) -> None:
    torch.manual_seed(0)
    steps = [[torch.randn(4, 3) * (1 + step % 3), torch.randn(5).half()] for step in range(6)]
    context, results, content = context_of(steps[0]), [], b""
    for step, grads in enumerate(steps):
        if step == stop:
            content = saved(context, how)
        context.step = step
        results.append(transform(grads, context))
    resumed = restored(content, how, steps[0])
    for step in range(stop, 6):
        resumed.step = step
        again = transform(steps[step], resumed)
        assert all(map(same, again, results[step])), step


@pytest.mark.parametrize("transform", [t for t in EXAMPLES if t.random or has(t, EMA, AutoClip, ZClip)], ids=label)
def test_a_restart_without_the_state_differs(transform: Transform) -> None:
    """Without the saved state the result differs, so the resume test above would fail if the state were lost."""
    torch.manual_seed(0)
    steps = [[torch.randn(4, 3) * 2.0**step, torch.randn(5)] for step in range(6)]
    context = context_of(steps[0])
    for step, grads in enumerate(steps):
        context.step = step
        result = transform(grads, context)
    fresh = transform(steps[5], context_of(steps[0], step=5))
    assert not all(map(same, result, fresh))


def test_public_names() -> None:
    assert package.__all__ == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
