"""`HookPoint`: rules can name it, and without a matching rule it changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import (
    ActivationTransforms,
    Apply,
    CustomHooks,
    Hook,
    HookPoint,
    StatsMonitor,
    Watch,
    assert_no_hooks,
    instrument,
    match,
)
from lightning_hooks.transforms import Scale
from tests.callbacks.models import Net, data, trainer_of


def test_it_returns_what_it_is_given() -> None:
    point, tensor = HookPoint(), torch.ones(2)
    nest = {"a": (tensor, None)}
    assert point(tensor) is tensor
    assert point(nest) is nest
    assert not list(point.parameters()) and not list(point.buffers()) and point.state_dict() == {}


class Attention(nn.Module):
    """Attention whose scores and weights are outputs of a module only because each goes through a `HookPoint`."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.weights = HookPoint(), HookPoint()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores: Tensor = self.scores(q @ k.T)
        weights: Tensor = self.weights(scores.softmax(-1))
        return weights @ v


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, x, x)
        return x


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ({"modules": "*.scores"}, ["blocks.0.scores", "blocks.1.scores"]),
        ({"modules": "*", "types": "HookPoint"}, [f"blocks.{i}.{what}" for i in range(2) for what in ("scores", "weights")]),
        ({"modules": ["*", "!*.scores"], "types": [HookPoint]}, ["blocks.0.weights", "blocks.1.weights"]),
    ],
)
def test_patterns_reach_it(where: dict[str, Any], names: list[str]) -> None:
    model = Blocks()
    rules = [Hook(print, kind="forward", **where)]
    assert match(model, rules=rules).names == names
    seen: list[str] = []
    with instrument(model, [CustomHooks([Hook(lambda name, *args: seen.append(name), kind="forward", named=True, **where)])]):
        model(torch.eye(2))
    assert seen == names


def test_attention_weights_are_watched_and_changed() -> None:
    model, x = Blocks(), torch.eye(2)
    uniform = Hook(lambda module, args, output: torch.zeros_like(output), kind="forward", modules="blocks.0.scores")
    watch = [Watch(modules="*.weights", tensors="output", stats=["mean", "std"])]
    with instrument(model, [StatsMonitor(watch), CustomHooks([uniform])]) as watched:
        y = model(x)
        watched.step()
    assert torch.equal(y, torch.full((2, 2), 0.5))  # The first block averages the rows.
    values = watched.latest
    assert values["output_mean/blocks.0.weights"] == 0.5 and values["output_std/blocks.0.weights"] == 0.0


class Marked(Net):
    """A `Net` with a `HookPoint` after every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = nn.ModuleList(HookPoint() for _ in self.body)

    def forward(self, x: Tensor) -> Tensor:
        for layer, mark in zip(self.body, self.marks, strict=True):
            x = mark(layer(x))
        return x


def weights(root: Path, model: Net, *callbacks: Any) -> list[Tensor]:
    torch.manual_seed(3)
    for layer in model.body:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    trainer_of(root, *callbacks, max_epochs=2).fit(model, data())
    assert_no_hooks(model)
    return [p.detach().clone() for p in model.parameters()]


def test_training_is_bit_identical_with_and_without_it(tmp_path: Path) -> None:
    plain, marked = weights(tmp_path, Net()), weights(tmp_path, Marked())
    assert all(torch.equal(one, other) for one, other in zip(plain, marked, strict=True))


def test_training_is_bit_identical_where_it_is_watched(tmp_path: Path) -> None:
    plain = weights(tmp_path, Net())
    monitor = StatsMonitor([Watch(modules="marks.*", tensors=["input", "output", "output_grad"], stats=["norm"])])
    look = CustomHooks(
        [Hook("tests.hooks.test_hook_point.look", kind=kind, modules="marks.*") for kind in ("forward", "output_grad")]
    )
    watched = weights(tmp_path, Marked(), monitor, look)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert monitor.latest["output_norm/marks.1"] > 0


def look(*args: Any) -> None:
    pass


def test_a_transform_at_it_changes_what_goes_on(tmp_path: Path) -> None:
    monitor = StatsMonitor([Watch(modules="body.3", tensors=["input"], stats=["abs_max"])])
    weights(tmp_path, Marked(), ActivationTransforms([Apply(Scale(0.0), modules="marks.2")]), monitor)
    assert monitor.latest["input_abs_max/body.3"] == 0.0


class Weighted(nn.Module):
    """A module whose parameter goes through a `HookPoint`: the output is a leaf, and outlives the step."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.mark = nn.Parameter(torch.tensor(3.0)), HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.mark(self.w) * x
        return y


def test_a_gradient_hook_on_a_marked_parameter_runs_once_a_backward() -> None:
    model, seen = Weighted(), []

    def double(grad: Tensor) -> Tensor:
        seen.append(grad.item())
        return grad * 2

    with instrument(model, [CustomHooks([Hook(double, kind="output_grad", modules="mark")])]) as watched:
        for step in range(3):
            model.zero_grad()
            model(torch.tensor(5.0)).backward()
            if step == 1:  # a second batch of the same step
                model(torch.tensor(5.0)).backward()
            assert model.w.grad == (20.0 if step == 1 else 10.0)
            watched.step()
    assert seen == [5.0] * 4
    model.zero_grad()
    model(torch.tensor(5.0)).backward()
    assert model.w.grad == 5.0 and not model.w._backward_hooks


def test_a_transform_of_instrument_acts_on_a_mark() -> None:
    model = Weighted()
    with instrument(model, [ActivationTransforms([Apply(Scale(10.0), modules="mark", tensor="output")])]) as watched:
        y = model(torch.tensor(5.0))
        y.backward()
        watched.step()
    assert y == 150.0 and model.w.grad == 50.0
    assert watched.latest == {
        "transform_acted/0_Scale": 1.0,
        "transform_cosine/0_Scale": 1.0,
        "transform_norm_after/0_Scale": 30.0,
        "transform_norm_before/0_Scale": 3.0,
    }
    assert_no_hooks(model)
