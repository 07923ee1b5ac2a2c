from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from lightning_hooks.errors import RuleError
from lightning_hooks.transforms import Context, Freeze


@pytest.mark.parametrize(
    ("transform", "passing"),
    [
        (Freeze(until_step=3), [3, 4, 5, 6, 7]),
        (Freeze(from_step=2), [0, 1]),
        (Freeze(until_step=2, from_step=5), [2, 3, 4]),
        (Freeze(until_step=0), list(range(8))),
    ],
)
def test_range(transform: Freeze, passing: list[int]) -> None:
    for step in range(8):
        (result,) = transform([torch.ones(2)], Context(step=step))
        assert result.tolist() == ([1.0, 1.0] if step in passing else [0.0, 0.0])


def test_result_is_a_tensor_of_its_own_in_both_phases() -> None:
    value = torch.ones(2)
    for step in (0, 1):
        assert Freeze(until_step=1)([value], Context(step=step))[0] is not value
        assert Freeze(until_step=1)([value], Context(step=step, owned=True))[0] is value


def path(make: Callable[[list[nn.Parameter]], Optimizer], transform: Freeze, steps: int) -> list[Tensor]:
    """The values of a parameter with gradient 1: before the first step, and after every step."""
    parameter = nn.Parameter(torch.tensor([1.0]))
    optimizer, values = make([parameter]), [parameter.detach().clone()]
    for step in range(steps):
        (parameter.grad,) = transform([torch.ones(1)], Context(step=step))
        optimizer.step()
        values.append(parameter.detach().clone())
    return values


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGD(p, lr=0.1),
        lambda p: SGD(p, lr=0.1, momentum=0.9),
        lambda p: Adam(p, lr=0.1),
        lambda p: AdamW(p, lr=0.1, weight_decay=0.0),
    ],
)
def test_holds_still_from_the_first_step_without_weight_decay(make: Callable[[list[nn.Parameter]], Optimizer]) -> None:
    values = path(make, Freeze(until_step=5), 7)
    assert all(value == 1 for value in values[:6]) and values[6] < 1 and values[7] < values[6]


def test_what_still_moves_it() -> None:
    # As documented: weight decay acts on every step, momentum for some steps after the freeze, and plain SGD does not move.
    decayed = path(lambda p: AdamW(p, lr=0.1, weight_decay=0.1), Freeze(until_step=9), 2)
    assert [value.item() for value in decayed] == pytest.approx([1.0, 0.99, 0.9801])
    rolling = path(lambda p: SGD(p, lr=0.1, momentum=0.5), Freeze(from_step=1), 3)
    assert [value.item() for value in rolling] == pytest.approx([1.0, 0.9, 0.85, 0.825])
    plain = path(lambda p: SGD(p, lr=0.1), Freeze(from_step=1), 3)
    assert [value.item() for value in plain] == pytest.approx([1.0, 0.9, 0.9, 0.9])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Freeze needs until_step or from_step, got neither; Zero acts on every step"),
        ({"until_step": -1}, "Freeze.until_step must be an integer of at least 0, got -1"),
        ({"from_step": True}, "Freeze.from_step must be an integer of at least 0, got True"),
        (
            {"until_step": 5, "from_step": 5},
            "Freeze.from_step must be above until_step, got until_step=5 and from_step=5: no step would be left; "
            "Zero acts on every step",
        ),
    ],
)
def test_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(RuleError) as error:
        Freeze(**options)
    assert str(error.value) == message
