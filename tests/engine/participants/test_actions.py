"""The order of the actions of several participants."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lightning_hooks.engine.participants.actions import in_order
from lightning_hooks.hooks import Action


def action(owner: Any, tensor: str = "output", **options: Any) -> Action:
    return Action(owner, tensor, lambda given: None, **options)


def test_actions_on_one_tensor_keep_the_order_of_their_participants() -> None:
    layer, other = nn.Linear(1, 1), nn.Linear(1, 1)
    reads, change, elsewhere, later = action(layer), action(layer, changes=True), action(other), action(layer)
    assert in_order([reads, elsewhere, change, later]) == [reads, change, later, elsewhere]


def test_an_action_that_is_first_runs_before_all_others_on_its_tensor() -> None:
    layer = nn.Linear(1, 1)
    reads, of_input, first = action(layer), action(layer, "input"), action(layer, changes=True, first=True)
    assert in_order([reads, of_input, first]) == [first, reads, of_input]


def test_readers_of_the_gradient_of_a_parameter_run_after_all_changes() -> None:
    parameter = nn.Parameter(torch.ones(1))
    early, late = action(parameter, "grad"), action(parameter, "grad")
    change, first = (action(parameter, "grad", changes=True, first=first) for first in (False, True))
    assert in_order([early, change, late, first]) == [first, change, early, late]
