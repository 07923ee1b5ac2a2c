"""The plan of one table for several owners: which rows are shared, which are split, and what each owner has of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_hooks import Accumulator, Column, Units, Watch
from lightning_hooks.plan.joined import Part, join
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.plan.rows import Row
from lightning_hooks.rules.schedule import EveryN


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def joined(model: nn.Module, *rules: Watch, turns: Any = None) -> tuple[Plan, list[Part]]:
    plans = [resolve(model, [rule], EveryN(), with_loss=True) for rule in rules]
    return join(plans, turns or [lambda row: 0] * len(plans))


def named(plan: Plan, rows: Any) -> list[tuple[str, str]]:
    return [(plan.rows[row].tensor, plan.rows[row].name) for row in rows]


def test_equal_rows_are_one_and_each_owner_finds_its_own() -> None:
    table, (first, second) = joined(
        net(),
        Watch(params="*", tensors=["grad", "param"], stats="norm"),
        Watch(params="*.weight", tensors=["grad", "update"], stats=["mean", "std"]),
    )
    assert len(table.rows) == 4 * 2 + 2 + 1  # grad and param of four parameters, update of two, the loss
    for part in (first, second):
        assert named(table, part.rows) == named(part.plan, range(len(part.plan.rows)))
    shared = table.rows[int(second.rows[0])]
    assert (shared.tensor, shared.name) == ("grad", "0.weight")
    assert [stats for _, stats in shared.requests] == [("norm",), ("mean", "std")]


def test_an_owner_is_due_at_its_own_schedules_only() -> None:
    model = net()
    plans = [resolve(model, [Watch(params="*", stats="norm")], EveryN(n), with_loss=True) for n in (1, 2)]
    table, (often, seldom) = join(plans, [lambda row: 0] * 2)
    demands = often.demands(frozenset([EveryN(1)]))
    assert often.schedules(demands) == {EveryN(1)} and seldom.schedules(demands) == frozenset()
    assert all(row.due(demands) for row in table.rows)
    assert not seldom.measured_at(frozenset()).any() and seldom.measured_at(frozenset([EveryN(2)])).all()


def test_a_tensor_before_a_change_is_another_row_than_after_it() -> None:
    rule = Watch(params="*", tensors=["grad", "param"], stats="norm")

    def later(row: Row) -> int:
        return int(row.tensor == "grad")

    table, (before, after) = joined(net(), rule, rule, turns=[lambda row: 0, later])
    assert len(table.rows) == 4 + 4 + 4 + 1
    grads = {"grad"}
    assert {table.rows[row].tensor for row in {*before.rows.tolist()} ^ {*after.rows.tolist()}} == grads


def test_comparisons_of_gradients_and_units_along_other_dimensions_are_split() -> None:
    cosine = Watch(params="0.weight", tensors="grad", stats="cosine")
    table, parts = joined(net(), cosine, cosine, Watch(params="0.weight", tensors="grad", stats="norm"))
    assert [row.tensor for row in table.rows].count("grad") == 2
    assert parts[2].rows[0] == parts[0].rows[0] != parts[1].rows[0]
    units = [Watch(modules="0", tensors="output", stats="dead_units", units=Units(axis=axis)) for axis in (0, 1, 1)]
    table, (first, second, third) = joined(net(), *units)
    assert first.rows[0] != second.rows[0] == third.rows[0]


def test_statistics_of_one_name_are_told_apart_in_the_table_alone() -> None:
    def largest(tensor: Tensor) -> Tensor:
        return tensor.max()

    one, other = largest, type(largest)(largest.__code__.replace(), largest.__globals__, "largest")
    rules = [Watch(modules="0", tensors="output", stats=[function]) for function in (one, other, one)]
    table, (first, second, third) = joined(net(), *rules)
    row = table.rows[int(first.rows[0])]
    assert sorted(row.users) == ["largest", "largest_2"]
    assert first.names == third.names == {} and second.names["largest"] == "largest_2"
    assert [part.plan.rows[0].stats for part in (first, second, third)] == [("largest",)] * 3
    assert second.own_names == {"largest_2", "function largest_2"}


class Greatest(Accumulator):
    """The greatest element, divided by a number."""

    name, columns, statistics = "greatest", (Column("greatest", merge="max", power=1),), ("greatest_part",)

    def __init__(self, divisor: float) -> None:
        self.divisor = divisor

    def measure(self, measurement: Any, row: str) -> Tensor:
        return measurement.tensor.max().double().reshape(1) / self.divisor

    def compute(self, stat: str, states: Any) -> np.ndarray:
        return states[self.name][:, 0]


def test_accumulators_of_one_name_are_told_apart_in_the_table_alone() -> None:
    accumulators = Greatest(1.0), Greatest(2.0)
    rules = [Watch(modules="0", tensors="output", stats=[each]) for each in accumulators]
    table, (first, second) = joined(net(), *rules)
    assert [each.accumulator.name for each in table.kept] == ["greatest", "greatest_2"]
    assert [each.accumulator.divisor for each in table.kept] == [1.0, 2.0]
    assert first.names == {} and second.names == {"greatest": "greatest_2", "greatest_part": "greatest_part_2"}


def test_the_rows_of_groups_are_measured_for_their_groups() -> None:
    table, (part,) = joined(net(), Watch(params="*", tensors="grad", stats=["norm", "histogram"], group_by=1))
    assert part.plan.groups and not table.groups
    assert all(row.stats == ("norm", "histogram") for row in table.rows if row.tensor == "grad")
