"""The order of actions of several participants, and which of them share a measurement."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lightning_hooks.engine.participants.actions import in_order
from lightning_hooks.hooks import Action, BackwardPass
from lightning_hooks.stats.sharing import measured_for


def measuring(owner: Any, given: list[Any], tensor: str = "output", **options: Any) -> Action:
    return Action(owner, tensor, measured_for(given.append), merge=given.append, **options)


def run(actions: list[Action]) -> None:
    for action in actions:
        action.call(torch.ones(1))


def test_neighbours_and_readers_further_on_share_a_measurement() -> None:
    layer, given, read = nn.Linear(1, 1), [], []
    actions = in_order([measuring(layer, given), Action(layer, "output", read.append), measuring(layer, given)])
    assert len(actions) == 2
    run(actions)
    assert len(given) == 2 and given[0] is given[1] and len(read) == 1


def test_a_change_in_between_ends_it() -> None:
    layer = nn.Linear(1, 1)
    for change in ({"changes": True}, {"whole": True}):
        given: list[Any] = []
        between = Action(layer, "output", lambda tensor: None, **change)
        actions = in_order([measuring(layer, given), between, measuring(layer, given)])
        assert [action is between for action in actions] == [False, True, False]
        run(actions)
        assert len(given) == 2 and given[0] is not given[1]


def test_other_tensors_are_measured_alone() -> None:
    layer, other, given = nn.Linear(1, 1), nn.Linear(1, 1), []
    actions = [
        measuring(layer, given),
        measuring(other, given),
        measuring(layer, given, "input"),
        measuring(layer, given, path="[0]"),
        measuring(layer, given, backward=BackwardPass.INNER),
        measuring(layer, given, recomputed=True),
    ]
    assert {*in_order(actions)} == {*actions}


def test_what_goes_first_and_what_comes_last() -> None:
    parameter = nn.Parameter(torch.ones(1))
    given: list[Any] = []
    change, first = (Action(parameter, "grad", lambda grad: grad, changes=True, first=first) for first in (False, True))
    *changes, reads = in_order([measuring(parameter, given, "grad"), change, measuring(parameter, given, "grad"), first])
    assert changes == [first, change]
    reads.call(torch.ones(1))
    assert len(given) == 2 and given[0] is given[1]
