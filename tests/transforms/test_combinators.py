import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.transforms import (
    EMA,
    AddDecayedWeights,
    AddNoise,
    Chain,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    Context,
    Dropout,
    EverySteps,
    FirstSteps,
    NormAbove,
    Scale,
    SkipStep,
    Transform,
    When,
    Zero,
    ZeroNonFinite,
)

ONES = torch.ones(3)
BAD = torch.tensor([float("nan"), 1.0])


@dataclass(frozen=True)
class Shared(Transform):
    """Returns the same tensor object in every call, as a user's transform may."""

    value: float = 7.0

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        return [torch.full_like(tensor, self.value) for tensor in tensors]


def first_is_positive(tensors: list[Tensor], context: Context) -> Tensor:
    return tensors[0].sum() > 0


# -- Chain -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owned", [False, True])
def test_each_transform_gets_the_result_of_the_previous_one(owned: bool) -> None:
    tensors = [torch.tensor([0.1, 0.5])]
    (result,) = Chain([Scale(10.0), ClipByValue(max=4.0), Shared(2.0), Scale(3.0)])(tensors, Context(owned=owned))
    assert result.tolist() == [6.0, 6.0]
    assert (result is tensors[0]) is owned and (tensors[0].tolist() == [6.0, 6.0]) is owned


@pytest.mark.parametrize("owned", [False, True])
def test_a_member_may_return_what_it_was_given_in_another_order(owned: bool) -> None:
    class Turned(Transform):
        def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
            return [tensors[1].flip(0), tensors[0].view(2)]

    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    results = Chain([Turned(), Scale(10.0)])(tensors, Context(owned=owned))
    assert [result.tolist() for result in results] == [[40.0, 30.0], [10.0, 20.0]]


def test_a_member_that_replaces_items_of_its_list_is_checked() -> None:
    class Wide(Transform):
        def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
            tensors[0] = tensors[0].double()
            return tensors

    with pytest.raises(TransformError, match="a tensor of dtype torch.float64, not torch.float32"):
        Chain([Wide()])([torch.ones(2)], Context())


def test_members_of_a_chain_from_names_and_mappings() -> None:
    made = Chain(["Zero", {"class_path": "lightning_hooks.transforms.Scale", "init_args": {"factor": 2.0}}, Scale(3.0)])
    assert made == Chain([Zero(), Scale(2.0), Scale(3.0)])
    assert repr(Chain([Zero()])) == "Chain(transforms=(Zero(index=None, dim=1),))"


def test_each_member_has_a_state_of_its_own() -> None:
    chain, context = Chain([EMA(0.5), EMA(0.5)]), Context(names=["w"])
    assert chain.initial_state() == {"0": {}, "1": {}}
    for _ in range(2):
        chain([ONES], context)
    assert context.state["0"]["w"].tolist() == [1.0] * 3 and context.state["1"]["w"].tolist() == [3.0] * 3


def test_equal_random_members_draw_different_numbers() -> None:
    (twice,) = Chain([AddNoise(1.0), AddNoise(1.0)])([torch.zeros(50)], Context(seed=1))
    (once,) = AddNoise(1.0)([torch.zeros(50)], Context(seed=1))
    assert not torch.allclose(twice, 2 * once)


@pytest.mark.parametrize(
    ("members", "flags"),
    [
        ([Scale(1.0)], set()),
        ([Scale(1.0), ClipByGlobalNorm(1.0)], {"needs_all"}),
        ([AddNoise(1.0), AddDecayedWeights(0.1)], {"random", "needs_params", "off_activations"}),
        ([Chain([ZeroNonFinite(), SkipStep()])], {"repairs_nonfinite", "needs_all", "needs_step", "off_activations"}),
    ],
    ids=["none", "all", "random", "nested"],
)
def test_a_chain_needs_what_any_needs(members: list[Transform], flags: set[str]) -> None:
    for combined in (Chain(members), When(FirstSteps(1), transform=Chain(members))):
        set_flags = {
            f for f in ("needs_all", "repairs_nonfinite", "random", "needs_params", "needs_step") if getattr(combined, f)
        }
        assert set_flags | (set() if combined.on_activations else {"off_activations"}) == flags


@pytest.mark.parametrize("flag", ["needs_all", "needs_params"])
def test_what_a_condition_needs_its_when_needs(flag: str) -> None:
    class Condition:
        def __call__(self, tensors: list[Tensor], context: Context) -> bool:
            return True

    setattr(Condition, flag, True)
    assert getattr(When(Condition(), transform=Scale(1.0)), flag)
    assert not getattr(When(FirstSteps(1), transform=Scale(1.0)), flag)


def test_a_member_asks_to_skip_the_step() -> None:
    context = Context()
    Chain([Scale(1.0), SkipStep(), Scale(1.0)])([BAD], context)
    assert context.skip_reason == "a gradient is not finite"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda t, c: t[0], "Chain.transforms[1] (function) must return a list of 1 tensors, got Tensor"),
        (lambda t, c: [], "Chain.transforms[1] (function) must return a list of 1 tensors, got list"),
        (lambda t, c: [1.0], "Chain.transforms[1] (function) returned for 'net.weight' float, not a tensor"),
        (
            lambda t, c: [t[0].double()],
            "Chain.transforms[1] (function) returned for 'net.weight' a tensor of dtype torch.float64, not torch.float32",
        ),
    ],
    ids=["tensor", "length", "float", "dtype"],
)
def test_what_a_member_returns_is_checked(result: Any, message: str) -> None:
    with pytest.raises(TransformError, match=re.escape(message)):
        Chain([Scale(1.0), result])([ONES], Context(names=["net.weight"]))


# -- When ------------------------------------------------------------------------------------------------------------------


def test_conditions_of_the_step() -> None:
    def acts(condition: object) -> list[bool]:
        return [When(condition, transform=Zero())([ONES], Context(step=step))[0].sum().item() == 0 for step in range(6)]

    assert acts(FirstSteps(2)) == [True, True, False, False, False, False]
    assert acts(EverySteps(3)) == [False, False, True, False, False, True]


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("condition", [NormAbove(2.0), f"{__name__}.first_is_positive", first_is_positive])
def test_the_device_selects_the_result_or_the_original(condition: object, owned: bool) -> None:
    tensors = [torch.full((4,), 3.0), torch.tensor([-0.0])]
    clip = When(condition, transform=ClipByNorm(1.0))
    result = clip(tensors, Context(owned=owned))
    assert result[0].norm().item() == pytest.approx(1.0, rel=1e-6) and (result[0] is tensors[0]) is owned
    small = [torch.full((4,), -0.5), torch.tensor([-0.0])]
    kept = clip(small, Context(owned=owned))
    assert kept[0].tolist() == [-0.5] * 4 and kept[1].signbit().all()


def test_a_condition_that_does_not_hold_stops_a_state_or_not() -> None:
    context = Context(names=["w"], step=5)
    When(FirstSteps(3), transform=EMA())([ONES], context)
    assert not context.state.get("transform")  # the transform was not called
    When(NormAbove(100.0), transform=EMA())([ONES], context)
    assert "w" in context.state["transform"]  # the transform was called, but its result was not selected


def test_norm_above() -> None:
    tensors = [torch.tensor([3.0]), torch.tensor([[4.0]]).half()]
    assert NormAbove(4.9)(tensors, Context()).item() and not NormAbove(5.0)(tensors, Context()).item()
    assert NormAbove(6.9, norm_type=1)(tensors, Context()).item() and not NormAbove(4.1, norm_type=float("inf"))(
        tensors, Context()
    )
    assert not NormAbove(0.0)([BAD], Context()) and not NormAbove(0.0)([], Context())


def test_a_skip_that_depends_on_a_norm() -> None:
    transform = When(NormAbove(1.5), transform=SkipStep(if_norm_above=0.1))
    for value, reason in ((ONES, "the norm of the gradients is above 0.1"), (ONES / 2, None)):
        context = Context()
        transform([value], context)
        assert context.skip_reason == reason


def test_conditions_from_mappings() -> None:
    for path in ("FirstSteps", "lightning_hooks.transforms.FirstSteps", "lightning_hooks.transforms.conditions.FirstSteps"):
        mapping = {"class_path": path, "init_args": {"n": 3}}
        made = When(mapping, transform={"class_path": "Dropout", "init_args": {"p": 0.5}})
        assert made == When(FirstSteps(3), transform=Dropout(0.5))
    assert When({"_target_": "NormAbove", "limit": 2.0}, transform=Zero()).condition == NormAbove(2.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Chain([]), "Chain.transforms must be a list of at least one transform, got []"),
        (lambda: Chain("Zero"), "Chain.transforms must be a list of at least one transform, got 'Zero'"),
        (lambda: Chain([Zero(), "Zreo"]), "Chain.transforms[1]: unknown transform 'Zreo' (did you mean 'Zero'"),
        (
            lambda: When(3, transform=Zero()),
            "When.condition must be a function, an object that can be called, or the import path of",
        ),
        (
            lambda: When(Zero(), transform=Zero()),
            "When.condition must answer with a bool, and Zero(index=None, dim=1) is a transform",
        ),
        (
            lambda: When(FirstSteps(1), transform=3),
            "When.transform must be a transform, a class path or a mapping with class_path, got 3",
        ),
        (
            lambda: When({"class_path": "FirstStep"}, transform=Zero()),
            "conditions has no 'FirstStep' (did you mean 'FirstSteps'",
        ),
        (lambda: FirstSteps(0), "FirstSteps.n must be an integer of at least 1, got 0"),
        (lambda: EverySteps(True), "EverySteps.n must be an integer of at least 1, got True"),
        (lambda: NormAbove(-1), "NormAbove.limit must be a finite number of at least 0, got -1"),
        (lambda: NormAbove(1, norm_type=0), "NormAbove.norm_type must be a number above 0 or infinity, got 0"),
    ],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(RuleError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("answer", [1, None, torch.ones(2, dtype=torch.bool), torch.tensor(1.0)], ids=str)
def test_answers_refused(answer: object) -> None:
    with pytest.raises(TransformError, match="must answer with a bool or a boolean scalar, got "):
        When(lambda tensors, context: answer, transform=Zero())([ONES], Context())


def test_a_chain_treats_each_element_by_itself_where_all_of_it_does():
    assert Chain([Scale(2.0), ClipByValue(max=1.0)]).elementwise
    assert not Chain([Scale(2.0), ClipByNorm(1.0)]).elementwise
    assert not Chain([Scale(2.0), lambda tensors, context: tensors]).elementwise
    assert not Chain.elementwise
