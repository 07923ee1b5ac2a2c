"""ScaleBySchedule, and the schedule of ReverseGradient."""

import math
import re
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import Apply, GradientTransforms, instrument
from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.transforms import Context, ReverseGradient, ScaleBySchedule


class Ramp:
    def __init__(self, slope: float) -> None:
        self.slope = slope

    def __call__(self, step: int) -> float:
        return self.slope * step


def test_straight_lines_level_outside() -> None:
    schedule = ScaleBySchedule(points=[(10, 1.0), (20, 3.0), (40, 0.0)])
    factors = [schedule.factor_at(step) for step in (0, 10, 15, 20, 30, 40, 1000)]
    assert factors == [1.0, 1.0, 2.0, 3.0, 1.5, 0.0, 0.0]
    assert [ScaleBySchedule(points=[(5, 0.5)]).factor_at(step) for step in (0, 5, 9)] == [0.5] * 3


@pytest.mark.parametrize(
    "call",
    [Ramp(2.0), f"{__name__}.double", {"class_path": f"{__name__}.Ramp", "init_args": {"slope": 2.0}}],
    ids=["object", "path", "mapping"],
)
def test_callables(call: Any) -> None:
    assert ScaleBySchedule(call=call)([torch.ones(1)], Context(step=3))[0].item() == 6.0


def double(step: int) -> float:
    return 2.0 * step


def test_the_factor_is_rounded_once() -> None:
    value = torch.randn(100, generator=torch.Generator().manual_seed(0)).half()
    for owned in (False, True):
        (result,) = ScaleBySchedule(points=[(0, 1e-3)])([value.clone()], Context(owned=owned))
        assert torch.equal(result, (value.float() * 1e-3).half())


@pytest.mark.parametrize("weight", [0.5, [(0, 0.5)], lambda step: 0.5], ids=["number", "points", "callable"])
def test_reversal_is_minus_the_weight(weight: Any) -> None:
    assert ReverseGradient(weight)([torch.tensor([4.0, -0.0])], Context())[0].tolist() == [-2.0, 0.0]


def test_domain_adversarial() -> None:
    """The layers before the reversed gradient learn the opposite; the layers after it and other branches do not change."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"features": nn.Linear(3, 4), "label": nn.Linear(4, 1), "domain": nn.Linear(4, 1)})
    data = torch.randn(5, 3)

    def gradients(rules: list[Apply], *heads: str) -> dict[str, Tensor]:
        model.zero_grad()
        with instrument(model, [GradientTransforms(rules)]) if rules else nullcontext():
            hidden = model["features"](data)
            torch.stack([model[head](hidden).square().mean() for head in heads]).sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    reverse = [Apply(ReverseGradient(0.3), modules="domain", tensor="input_grad")]
    alone, other, reversed_grads = gradients([], "label"), gradients([], "domain"), gradients(reverse, "label", "domain")
    for name in ("features.weight", "features.bias"):
        assert torch.allclose(reversed_grads[name], alone[name] - 0.3 * other[name], rtol=1e-5, atol=1e-7)
    assert torch.equal(reversed_grads["domain.weight"], other["domain.weight"])
    assert torch.equal(reversed_grads["label.weight"], alone["label.weight"])


@pytest.mark.parametrize("value", [math.nan, "1", None])
def test_what_a_callable_gives_is_checked(value: Any) -> None:
    for transform in (ScaleBySchedule(call=lambda step: value), ReverseGradient(lambda step: value)):
        with pytest.raises(TransformError, match=re.escape(f"must give a finite number, and gave {value!r} at step 4")):
            transform([torch.ones(1)], Context(step=4))


POINTS = "ScaleBySchedule.points must be a list of pairs (step, factor)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScaleBySchedule(), "ScaleBySchedule needs points or call, got neither"),
        (lambda: ScaleBySchedule(points=[(0, 1.0)], call=double), "ScaleBySchedule needs points or call, got both"),
        (lambda: ScaleBySchedule(points=[]), f"{POINTS}, got []"),
        (lambda: ScaleBySchedule(points=[(0, 1.0), 3]), f"{POINTS}, got 3 among them"),  # type: ignore[list-item]
        (lambda: ScaleBySchedule(points=[(-1, 1.0)]), f"{POINTS} with steps from 0, got the step -1"),
        (
            lambda: ScaleBySchedule(points=[(0, math.inf)]),
            f"{POINTS} with factors that are finite in float32, got the factor inf",
        ),
        (lambda: ScaleBySchedule(points=[(5, 1.0), (5, 2.0)]), f"{POINTS} in the order of the steps, got 5 after 5"),
        (lambda: ScaleBySchedule(call="math.nothing"), "ScaleBySchedule.call: cannot import 'math.nothing'"),
        (lambda: ReverseGradient(math.nan), "ReverseGradient.weight must be a finite number, got nan"),
        (lambda: ReverseGradient(None), "ReverseGradient.weight must be a finite number, a list of pairs (step, weight), a"),  # type: ignore[arg-type]
        (lambda: ReverseGradient("math.pi"), "ReverseGradient.weight must be a function, an object that can be called, or"),
    ],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(RuleError, match=re.escape(message)):
        make()
