"""The cases of well-known hook tutorials, each written as rules of this package, in Python and in YAML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from lightning_hooks import CustomHooks, Hook, HookPoint, StatsMonitor, Watch, assert_no_hooks, instrument
from lightning_hooks.hooks import print_shapes, save_to
from tests.engine.user_hooks import tutorial_calls as calls


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    calls.seen.clear()
    yield
    calls.seen.clear()


def both_ways(rules: list[Hook], text: str) -> list[Any]:
    """The same rules, written in Python and in YAML, as two parameters of a test."""
    return [pytest.param(rules, id="python"), pytest.param(yaml.safe_load(text), id="yaml")]


class Product(nn.Module):
    """e = (a·b)·d, where c = a·b and e go through a `HookPoint`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.d = (nn.Parameter(torch.tensor(value)) for value in (2.0, 3.0, 4.0))
        self.c, self.e = HookPoint(), HookPoint()

    def forward(self) -> tuple[Tensor, Tensor]:
        c = self.c(self.a * self.b)
        e = self.e(c * self.d)
        c.retain_grad()
        e.retain_grad()
        return c, e


@pytest.mark.parametrize(
    "rules",
    both_ways(
        [
            Hook(calls.add_two, kind="output_grad", modules="c"),
            Hook(calls.look, kind="output_grad", modules="c"),
            Hook(calls.add_hundred, kind="param_grad", params="d"),
            Hook(calls.double, kind="output_grad", modules="e"),
        ],
        """
        - {call: tests.engine.user_hooks.tutorial_calls.add_two, kind: output_grad, modules: c}
        - {call: tests.engine.user_hooks.tutorial_calls.look, kind: output_grad, modules: c}
        - {call: tests.engine.user_hooks.tutorial_calls.add_hundred, kind: param_grad, params: d}
        - {call: tests.engine.user_hooks.tutorial_calls.double, kind: output_grad, modules: e}
        """,
    ),
)
def test_gradients_of_intermediate_tensors_are_changed_in_the_order_written(rules: list[Any]) -> None:
    model = Product()
    with instrument(model, [CustomHooks(rules)]):
        c, e = model()
        e.backward()
    assert calls.seen == [torch.tensor(10.0)]
    assert (e.grad, c.grad) == (2, 10)
    assert (model.d.grad, model.a.grad, model.b.grad) == (112, 30, 20)
    assert_no_hooks(model)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.flat, self.linear = nn.Conv2d(3, 10, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(160, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(self.flat(self.relu(self.conv(x))))
        return y


@pytest.mark.parametrize(
    "rules",
    both_ways(
        [
            Hook(calls.zero, kind="param_grad", params="*.bias", types="Linear"),
            Hook(calls.nothing_below_zero, kind="input_grad", modules="relu"),
        ],
        """
        - {call: tests.engine.user_hooks.tutorial_calls.zero, kind: param_grad, params: "*.bias", types: Linear}
        - {call: tests.engine.user_hooks.tutorial_calls.nothing_below_zero, kind: input_grad, modules: relu}
        """,
    ),
)
def test_biases_by_name_and_the_gradient_out_of_a_relu(rules: list[Any]) -> None:
    torch.manual_seed(0)
    model, x = ConvNet(), torch.randn(1, 3, 8, 8)
    plain = [grad.clone() for grad in torch.autograd.grad((1 - model(x)).mean(), list(model.parameters()))]
    watch = [Watch(modules="relu", tensors=["input_grad", "output_grad"], stats="min"), Watch(modules="conv", stats="min")]
    with instrument(model, [StatsMonitor(watch), CustomHooks(rules)]) as watched:
        (1 - model(x)).mean().backward()
        watched.step()
    values = watched.latest
    assert values["output_grad_min/relu"] < 0
    assert values["output_grad_min/conv"] == 0  # what flows on, out of the ReLU
    assert model.linear.bias.grad is not None and torch.equal(model.linear.bias.grad, torch.zeros(5))
    named = dict(model.named_parameters())
    before = dict(zip(named, plain, strict=True))
    assert before["linear.bias"].ne(0).all()
    assert torch.equal(named["linear.weight"].grad, before["linear.weight"])  # type: ignore[arg-type]
    assert not torch.equal(named["conv.bias"].grad, before["conv.bias"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rules",
    both_ways(
        [Hook(calls.ones_for_input, kind="full_backward", modules="0")],
        "- {call: tests.engine.user_hooks.tutorial_calls.ones_for_input, kind: full_backward, modules: '0'}",
    ),
)
def test_a_backward_rule_replaces_the_gradient_of_the_input(rules: list[Any]) -> None:
    model, x = nn.Sequential(nn.Linear(10, 20)), torch.randn(3, 10, requires_grad=True)
    with instrument(model, [CustomHooks(rules)]):
        model(x).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones(3, 10))


class Square(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.y = HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.y(x * x)
        return y.sum()


@pytest.mark.parametrize(
    "rules",
    both_ways(
        [Hook(calls.noisy, kind="output_grad", modules="y")],
        "- {call: tests.engine.user_hooks.tutorial_calls.noisy, kind: output_grad, modules: y}",
    ),
)
def test_noise_on_the_gradient_of_an_intermediate_tensor(rules: list[Any]) -> None:
    model, x = Square(), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with instrument(model, [CustomHooks(rules)]):
        model(x).backward()
    assert x.grad is not None and torch.equal(x.grad, 2 * x.detach() * (1 + calls.NOISE))


@pytest.mark.parametrize(
    "rules",
    both_ways(
        [
            Hook(calls.look, kind="output_grad", modules="0"),
            Hook(calls.noisy, kind="param_grad", params="0.bias"),
        ],
        """
        - {call: tests.engine.user_hooks.tutorial_calls.look, kind: output_grad, modules: "0"}
        - {call: tests.engine.user_hooks.tutorial_calls.noisy, kind: param_grad, params: "0.bias"}
        """,
    ),
)
def test_noise_on_the_gradient_of_a_bias_alone(rules: list[Any]) -> None:
    model, x = nn.Sequential(nn.Linear(3, 1)), 10 * torch.ones(8, 3)
    with instrument(model, [CustomHooks(rules)]):
        y = model(x)
        y.backward(1.5 * torch.ones_like(y))
    assert torch.equal(calls.seen[0], 1.5 * torch.ones(8, 1))
    assert torch.equal(model[0].bias.grad, torch.tensor([12 + calls.NOISE]))
    assert torch.equal(model[0].weight.grad, torch.full((1, 3), 120.0))


@pytest.mark.parametrize(
    "rules",
    both_ways(
        [Hook(calls.see_input, kind="forward_pre", modules="0"), Hook(calls.see_both, kind="forward", modules="0")],
        """
        - {call: tests.engine.user_hooks.tutorial_calls.see_input, kind: forward_pre, modules: "0"}
        - {call: tests.engine.user_hooks.tutorial_calls.see_both, kind: forward, modules: "0"}
        """,
    ),
)
def test_a_pre_hook_sees_the_input_and_a_forward_hook_both(rules: list[Any]) -> None:
    model, x = nn.Sequential(nn.Linear(10, 1)), torch.ones(8, 10)
    with instrument(model, [CustomHooks(rules)]):
        model(x)
    (first, given), (second, again, output) = calls.seen
    assert (first, second) == ("input", "output")
    assert torch.equal(given, x) and torch.equal(again, x)
    torch.testing.assert_close(output, (model[0].weight.sum() + model[0].bias).expand(8, 1))


@pytest.mark.parametrize(
    "rules",
    both_ways(
        [Hook(print_shapes, kind="full_backward", modules="*", types=["Conv2d", "Linear"])],
        "- {call: lightning_hooks.hooks.print_shapes, kind: full_backward, modules: '*', types: [Conv2d, Linear]}",
    ),
)
def test_shapes_of_gradients_are_printed(rules: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    model, x = ConvNet(), torch.randn(1, 3, 8, 8, requires_grad=True)
    with instrument(model, [CustomHooks(rules)]):
        model(x).sum().backward()
    assert capsys.readouterr().out.splitlines() == [
        "linear full_backward: grad_input [(1, 160)], grad_output [(1, 5)]",
        "conv full_backward: grad_input [(1, 3, 8, 8)], grad_output [(1, 10, 4, 4)]",
    ]


def test_feature_maps_of_a_forward_pass_are_saved() -> None:
    maps: dict[str, Any] = {}
    model, x = ConvNet(), torch.randn(1, 3, 8, 8)
    with instrument(model, [CustomHooks([Hook(save_to(maps), kind="forward", modules="*", types=["Conv2d", "ReLU"])])]):
        model(x)
    assert {name: tuple(value.shape) for name, value in maps.items()} == {"conv": (1, 10, 4, 4), "relu": (1, 10, 4, 4)}
    assert torch.equal(maps["relu"], model.conv(x).relu()) and not maps["relu"].requires_grad
