"""What ended a run: the innermost module of the traceback, the model itself, or code outside all modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.engine.recording.failures import failure_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor, fails: bool = False) -> Tensor:
        if fails:
            raise ValueError("broken")
        y: Tensor = self.layer(x)
        return y


def outside(net: Net) -> None:
    net(torch.ones(1, 2))
    raise ValueError("broken")


def in_backward(net: Net) -> None:
    def broken(grad: Tensor) -> None:
        raise ValueError("broken")

    y = net(torch.ones(1, 2))
    y.register_hook(broken)
    y.sum().backward()


CASES: dict[str, tuple[Callable[[Net], Any], str | None, str]] = {
    "layer": (lambda net: net(torch.ones(1, 3)), "layer", "forward"),
    "model": (lambda net: net(torch.ones(1, 2), fails=True), "", "forward"),
    "outside": (outside, None, "forward"),
    "backward": (in_backward, None, "backward"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_innermost_module_is_named_and_is_not_the_model_if_there_is_none(case: str) -> None:
    act, module, direction = CASES[case]
    net = Net()
    with pytest.raises((ValueError, RuntimeError)) as raised:
        act(net)
    failure = failure_of(raised.value, net)
    assert (failure.module, failure.direction) == (module, direction)
