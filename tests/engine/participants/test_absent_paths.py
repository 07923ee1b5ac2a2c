"""A path of a rule that no output has is warned of once; the message describes the output."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import ActivationCapture, ActivationTransforms, Apply, StatsMonitor, Watch, instrument
from lightning_hooks.hooks.parts import Arguments, described
from lightning_hooks.transforms import Scale
from tests.callbacks.models import Net, data, plain_sgd, trainer_of


@dataclass
class Output:
    logits: Tensor
    loss: Any = None


class Pair(NamedTuple):
    first: int
    second: int


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.linear = nn.Linear(8, 3)

    def forward(self, x: Tensor, *, mask: Any = None) -> Output:
        self.calls += 1
        logits = self.linear(x)
        return Output(logits, logits.sum() if self.calls % 2 == 0 else None)


class Headed(Net):
    def __init__(self) -> None:
        super().__init__(plain_sgd)
        self.head, self.second = Head(), Head()
        self.body[3] = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return self.head(hidden, mask=None).logits + self.second(hidden).logits


def said(tmp_path: Path, *callbacks: Any, **options: Any) -> list[str]:
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer_of(tmp_path, *callbacks, **options).fit(Headed(), data(4))
    return [str(w.message) for w in seen if "was not found" in str(w.message)]


def test_a_monitor_says_so_once_with_all_modules(tmp_path: Path) -> None:
    rules = [
        Watch(modules=["head", "second"], tensors=["output.logit", "output_grad.logit", "output.logits"]),
        Watch(modules=["head"], tensors=["input[3]", "input.mask"]),
    ]
    monitor = StatsMonitor(rules)
    (message,) = said(tmp_path, monitor, accumulate_grad_batches=2)
    assert "watch: 'output.logit' was not found at head (nor at second), which has an Output with 'logits', 'loss'" in message
    assert "watch: 'output_grad.logit' was not found at head (nor at second)" in message
    assert "watch: 'input[3]' was not found at head, which has 1 positional argument and 'mask' by name" in message
    assert "watch: 'input.mask' was not found at head" in message and "'output.logits'" not in message
    assert message.endswith(": the rule has no effect there")
    assert any(tag.startswith("output.logits_") for tag in monitor.latest), list(monitor.latest)


def test_a_part_that_some_call_of_the_step_has_is_not_missed(tmp_path: Path) -> None:
    (message,) = said(tmp_path, StatsMonitor([Watch(modules="head", tensors="output.loss")]))
    assert "watch: 'output.loss' was not found at head" in message
    assert not said(tmp_path, StatsMonitor([Watch(modules="head", tensors="output.loss")]), accumulate_grad_batches=2)


def test_a_part_that_another_module_of_the_rule_has_is_not_missed(tmp_path: Path) -> None:
    assert not said(tmp_path, StatsMonitor([Watch(modules="*", tensors=["output", "output.logits"])]))


def test_activation_transforms_say_so(tmp_path: Path) -> None:
    rules = [
        Apply(Scale(0.5), modules="head", tensor="output.logits"),
        Apply(Scale(0.5), modules="head", tensor="output.logit"),
    ]
    (message,) = said(tmp_path, ActivationTransforms(rules))
    assert message.startswith("apply[1]") and "'output.logit' was not found at head, which has an Output" in message


def test_a_capture_says_so(tmp_path: Path) -> None:
    capture = ActivationCapture("head", tensor="output.logit", every_n_steps=1, folder=tmp_path / "captures")
    (message,) = said(tmp_path, capture)
    assert message.startswith("ActivationCapture: 'output.logit' was not found at head")


def test_a_plain_loop_says_so() -> None:
    model = nn.Sequential(Head())
    with instrument(model, [StatsMonitor([Watch(modules="0", tensors="output[5]")])]) as watched:
        model(torch.ones(1, 8)).logits.sum().backward()
        with pytest.warns(UserWarning, match=r"'output\[5\]' was not found"):
            watched.step()
        model(torch.ones(1, 8)).logits.sum().backward()
        watched.step()


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (None, "None"),
        (torch.ones(1), "one tensor"),
        ({"a": 1, 2: 3}, "a dict with 'a', 2"),
        ({}, "a dict with nothing"),
        ((1, None), "a tuple of 2: int, NoneType"),
        (Pair(1, 2), "a Pair with 'first', 'second'"),
        (Output(torch.ones(1)), "an Output with 'logits', 'loss'"),
        (3, "an int"),
        (Arguments((), {}), "0 positional arguments"),
        (dict.fromkeys(range(12)), "a dict with 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"),
    ],
)
def test_what_there_is_is_described(tree: Any, words: str) -> None:
    assert described(tree) == words
