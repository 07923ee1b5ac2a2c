"""The states from a checkpoint that each transform accepts and refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks import Transform
from lightning_hooks.transforms import EMA, AutoClip, Chain, EverySteps, SkipStep, When, ZClip

NAN = torch.tensor(math.nan)


class Own(Transform):
    def initial_state(self) -> dict[str, Any]:
        return {"mean": torch.zeros(1), "steps": 0, "last": None, "seen": [], "by": {"name": "x"}}


GOOD: list[tuple[Transform, dict[str, Any]]] = [
    (EMA(), {}),
    (EMA(), {"w": torch.full((2, 3), math.nan)}),
    (EMA(), {"w": torch.zeros(2, 3, dtype=torch.float64)}),
    (EMA(), {"elsewhere": torch.zeros(7)}),
    (AutoClip(history=3), {"norms": torch.tensor([1.0, math.nan, 0.0])}),
    (ZClip(warmup=4), {"norms": torch.ones(3)}),
    (ZClip(), {"mean": torch.tensor(1.0), "var": torch.tensor(math.inf)}),
    (ZClip(), {"mean": NAN, "var": NAN}),
    (SkipStep(), {"consecutive": 3}),
    (Chain([EMA(), SkipStep()]), {"0": {}, "1": {"consecutive": 0}}),
    (Chain([EMA(), lambda tensors, context: tensors]), {"0": {}, "1": {5: "a key of the user's"}}),
    (
        Own(),
        {"mean": torch.full((9,), math.nan), "steps": 0.5, "last": "x", "seen": (1,), "by": {"name": ""}, "more": 1},
    ),
]
BAD: list[tuple[Transform, dict[str, Any], str]] = [
    (EMA(), {"w": None}, "state['w'] must be a dense floating-point tensor of shape (2, 3), got None"),
    (EMA(), {"w": torch.zeros(3, 2)}, "of shape (2, 3), got a tensor of torch.float32 and shape (3, 2)"),
    (EMA(), {"w": torch.zeros(2, 3, dtype=torch.complex64)}, "got a tensor of torch.complex64 and shape (2, 3)"),
    (
        EMA(),
        {"elsewhere": torch.zeros(7, dtype=torch.int64)},
        "must be a dense floating-point or complex tensor",
    ),
    (AutoClip(), {"norms": [1.0]}, "state['norms'] must be a dense floating-point tensor, got [1.0]"),
    (AutoClip(), {"norms": torch.ones(2, 2)}, "state['norms'] must have 1 dimension, got 2"),
    (AutoClip(), {"norms": torch.tensor([-1.0])}, "state['norms'] must not be negative, got -1"),
    (AutoClip(), {"norms": torch.tensor([math.inf])}, "state['norms'] must be finite or NaN, got inf"),
    (AutoClip(), {"norms": torch.ones(0)}, "state['norms'] must have at least 1 number, got 0"),
    (AutoClip(history=3), {"norms": torch.ones(4)}, "state['norms'] must have 1 to 3 numbers, got 4"),
    (AutoClip(), {"norm": torch.ones(4)}, "state has an unknown key 'norm'"),
    (ZClip(warmup=4), {"norms": torch.ones(4)}, "state['norms'] must have 1 to 3 numbers, got 4"),
    (ZClip(), {"mean": torch.ones(())}, "state has no 'var'"),
    (ZClip(), {"mean": torch.ones(()), "var": NAN}, "state['var'] must be a number where state['mean'] is one, got nan"),
    (SkipStep(), {"consecutive": True}, f"state['consecutive'] must be an integer from 0 to {2**63 - 1}, got True"),
    (Chain([EMA(), SkipStep()]), {"0": {}}, "state has no '1'"),
    (Chain([EMA(), SkipStep()]), {"0": {}, "1": None}, "state['1'] must be a dictionary, got None"),
    (When(EverySteps(1), transform=EMA()), {"transform": {"w": 1}}, "in state['transform']: state['w'] must be a dense"),
    (Own(), {}, "state has no 'mean'"),
    (
        Own(),
        {**Own().initial_state(), "mean": torch.zeros(1, dtype=torch.int64)},
        "must be a floating-point tensor with 1 dimensions",
    ),
    (Own(), {**Own().initial_state(), "steps": math.nan}, "state['steps'] must be a finite number below 2**63, got nan"),
    (Own(), {**Own().initial_state(), "seen": "no"}, "state['seen'] must be of type list, got 'no'"),
    (Own(), {**Own().initial_state(), "by": {}}, "state['by'] has no 'name'"),
]
PARAMS: dict[str, Tensor] = {"w": torch.zeros(2, 3)}


@pytest.mark.parametrize(("transform", "state"), GOOD)
def test_a_state_that_the_transform_may_have_saved_is_accepted(transform: Transform, state: dict[str, Any]) -> None:
    transform.check_state(state, PARAMS)


@pytest.mark.parametrize(("transform", "state", "message"), BAD)
def test_a_state_that_a_transform_cannot_have_saved_is_refused(
    transform: Transform, state: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        transform.check_state(state, PARAMS)
    assert message in str(caught.value)
