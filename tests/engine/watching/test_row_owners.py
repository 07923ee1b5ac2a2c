"""Which owners demand a row, who reads it, and how its cost is split."""

from __future__ import annotations

import pytest
from torch import nn

from lightning_hooks import Watch
from lightning_hooks.engine.watching.row_owners import RowOwners, owners_requesting
from lightning_hooks.plan.joined import join
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.rules.schedule import EveryN


@pytest.fixture
def owners():
    """One owner that watches a gradient at every step, one that also watches the ratio of the update at every second."""
    model = nn.Linear(3, 1, bias=False)
    rules = (
        [Watch(params="*", tensors="grad", stats="norm")],
        [
            Watch(params="*", tensors="grad", stats="norm"),
            Watch(params="*", tensors="update", stats="ratio"),
        ],
    )
    plans = [resolve(model, each, EveryN(every)) for each, every in zip(rules, (1, 2), strict=True)]
    plan, parts = join(plans, [lambda row: 0] * 2)
    updates = {param: [update] for update, param in plan.param_row_of.items()}
    both = frozenset().union(*(part.demands(frozenset(part.plan.schedules)) for part in parts))
    return plan, RowOwners(plan, 2, lambda row: updates.get(row, ())), both, both - parts[0].demands(frozenset([EveryN(1)]))


def test_a_row_of_param_is_demanded_by_the_owner_whose_ratio_divides_by_it(owners) -> None:
    plan, row_owners, both, second = owners
    found = {row.tensor: (row_owners.demanding(row, both), row_owners.demanding(row, second)) for row in plan.rows}
    assert found == {"grad": ([0, 1], [1]), "update": ([1], [1]), "param": ([1], [1])}
    assert {row.tensor: owners_requesting(row) for row in plan.rows} == {"grad": {0, 1}, "update": {1}, "param": set()}


def test_a_row_is_read_in_the_turn_of_the_first_that_demands_it(owners) -> None:
    plan, row_owners, both, second = owners
    read = [[plan.rows[row].tensor for row in row_owners.turn(number, due)] for due in (both, second) for number in (0, 1)]
    assert read[0] == ["grad"] and {*read[1]} == {"update", "param"}
    assert read[2] == [] and {*read[3]} == {"grad", "update", "param"}


def test_the_cost_of_a_row_is_split_evenly_between_those_that_demand_it(owners) -> None:
    _, row_owners, both, second = owners
    assert [row_owners.portion(number, both) for number in (0, 1)] == pytest.approx([0.5 / 3, 2.5 / 3])
    assert [row_owners.portion(number, second) for number in (0, 1)] == [0.0, 1.0]
    assert [row_owners.portion(number, frozenset()) for number in (0, 1)] == [0.5, 0.5]
