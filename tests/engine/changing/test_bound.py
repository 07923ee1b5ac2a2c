"""Saving a bound transform in a checkpoint, and restoring it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lightning_hooks import Apply, RuleError, Transform, TransformError
from lightning_hooks.engine.changing.participant import TransformParticipant
from lightning_hooks.engine.changing.resolve import resolve_applies
from lightning_hooks.transforms import EMA, AdaptiveClip, AddNoise, Chain, Freeze, Function, SkipStep, When


def bound(transform, seed=0):
    (one,) = resolve_applies(nn.Linear(2, 2), [Apply(transform, params="weight")], seed)
    return one


def draw(one):
    return one.run([torch.zeros(2, 2)], ["weight"], [None], 0, owned=True)[0]


@pytest.mark.parametrize("drawn", [0, 2], ids=["not drawn before", "drawn before"])
def test_a_resumed_run_draws_the_numbers_of_the_run_that_never_stopped(drawn):
    first, resumed = bound(AddNoise(0.1), 1), bound(AddNoise(0.1), 2)
    for _ in range(drawn):
        draw(first)
    draw(resumed)
    resumed.checked(first.saved())()
    assert torch.equal(draw(resumed), draw(first))


class Skips(Transform):
    """Asks to skip a step without having set `needs_step`."""

    def __call__(self, tensors, context):
        context.skip_step("because")
        return tensors


def test_a_transform_that_does_not_say_so_may_not_skip_a_step():
    (bound,) = resolve_applies(nn.Linear(2, 2), [Apply(Skips(), params="weight")])
    for _ in range(2):  # The second call must raise too: the refused request does not stay.
        with pytest.raises(TransformError) as caught:
            bound.run([torch.zeros(1)], ["weight"], [None], 0, owned=True)
        assert str(caught.value) == (
            "apply[0].transform (Skips) called skip_step; only a transform with needs_step = True may, with when='step'"
        )
        assert bound.context.skip_reason is None


class Misfits(Transform):
    def __call__(self, tensors, context):
        return [tensor.view(7) for tensor in tensors]


def test_an_error_that_a_transform_raises_says_which_transform_it_was():
    with pytest.raises(RuntimeError, match="shape '\\[7\\]' is invalid") as caught:
        draw(bound(Misfits()))
    assert caught.value.__notes__ == ["raised in apply[0].transform (Misfits)"]


@pytest.mark.parametrize(
    ("transform", "fields", "message"),
    [
        (AdaptiveClip(), {"modules": "0"}, "AdaptiveClip needs the parameter behind each gradient; use it on params"),
        (
            Freeze(until_step=1),
            {"modules": "0", "tensor": "output"},
            "Freeze has no meaning on activations; use it on gradients, in GradientTransforms",
        ),
        (
            SkipStep(),
            {"params": "*", "when": "backward"},
            "SkipStep acts on the optimizer's step as a whole; use it at when='step' on params",
        ),
    ],
)
def test_a_transform_is_refused_where_it_has_no_meaning(transform, fields, message):
    with pytest.raises(RuleError) as caught:
        resolve_applies(nn.Sequential(nn.Linear(2, 2)), [Apply(transform, **fields)])
    assert str(caught.value) == f"apply[0]: {message}"


@pytest.mark.parametrize("saved_on", ["cpu:0", "cuda:0"], ids=["the device of rank 0", "a device that is not here"])
def test_a_checkpoint_of_another_device(saved_on):
    """Rank 0 saves the checkpoint that all ranks read, and each has another device."""
    first, resumed = bound(AddNoise(0.1)), bound(AddNoise(0.1))
    draw(first)
    saved = first.saved()
    fetched = torch.zeros(16, dtype=torch.uint8) if saved_on == "cuda:0" else saved.generators["cpu"]
    resumed.checked(replace(saved, generators={saved_on: fetched}))()
    fresh = bound(AddNoise(0.1))  # A device of another type draws other numbers in any case.
    assert torch.equal(draw(resumed), draw(fresh if saved_on == "cuda:0" else first))


class Counts(Transform):
    """A user's transform that is no dataclass."""

    def __call__(self, tensors, context):
        context.state["calls"] = context.state.get("calls", 0) + 1
        return tensors


def function():
    return lambda *given: given[0]


@pytest.mark.parametrize(
    "make",
    [Counts, lambda: Chain([EMA(), Function(function())]), lambda: When(lambda *given: True, transform=EMA())],
    ids=["object", "function", "condition"],
)
def test_what_has_another_address_in_another_process_continues(make, recwarn):
    first, resumed = bound(make()), bound(make())
    assert repr(first.transform) != repr(resumed.transform)  # both hold an address
    draw(first)
    TransformParticipant([resumed]).load_state_dict(TransformParticipant([first]).state_dict())
    assert first.context.state and resumed.context.state == first.context.state
    assert not recwarn.list
