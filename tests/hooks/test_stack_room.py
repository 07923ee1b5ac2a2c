"""Deeply nested models: torch needs one more frame for each hooked module, and the stack of the interpreter is limited."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, Watch, instrument
from lightning_hooks.hooks import Handles, StackRoom


def nested(depth: int) -> nn.Module:
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(depth):
        model = nn.Sequential(model)
    return model


@pytest.mark.parametrize(
    "tensors", [["output"], ["input"], ["input_grad"], ["output_grad"], ["input", "output", "input_grad", "output_grad"]]
)
def test_two_hundred_nested_modules_are_watched(tensors: list[str]) -> None:
    model, before = nested(200), sys.getrecursionlimit()
    x = torch.ones(1, 2, requires_grad=True)
    with instrument(model, [StatsMonitor([Watch(modules="*", tensors=tensors, stats="mean")])]) as watched:
        for _ in range(2):
            model(x).sum().backward()
            watched.step()
        numbers = watched.latest
    assert len(numbers) == 200 * len(tensors) + 2 and sys.getrecursionlimit() == before
    assert {name.split("/")[0] for name in numbers} == {f"{tensor}_mean" for tensor in tensors} | {"run"}
    assert {name for name in numbers if name.startswith("run/")} == {"run/loss", "run/nonfinite"}


def test_models_with_few_levels_leave_the_limit_alone() -> None:
    handles, before = Handles(), sys.getrecursionlimit()
    StackRoom(nested(20)).make(handles)
    assert len(handles) == 0 and sys.getrecursionlimit() == before


def test_several_deep_models_and_a_limit_that_someone_else_sets() -> None:
    before = sys.getrecursionlimit()
    first, second = Handles(), Handles()
    try:
        StackRoom(nested(60)).make(first)
        one = sys.getrecursionlimit()
        StackRoom(nested(70)).make(second)
        assert before < one < sys.getrecursionlimit()
        first.close()
        assert before < sys.getrecursionlimit() < before + 200
        sys.setrecursionlimit(before + 500)
        second.close()
        assert sys.getrecursionlimit() == before + 500
    finally:
        sys.setrecursionlimit(before)
