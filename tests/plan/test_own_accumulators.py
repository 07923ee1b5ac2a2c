"""Accumulators that users write: how rules name them, which are refused, and the statistics that follow."""

import math

import pytest
import torch
from torch import nn

from examples.singular_value import LargestSingularValue
from lightning_hooks import Accumulator, Column, RuleError, StatsMonitor, Watch, instrument
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.rules.schedule import EveryN


class Extremes(Accumulator):
    name, statistics = "extremes", ("span",)
    columns = (Column("least", merge="min", power=1), Column("greatest", merge="max", power=1))

    def measure(self, measurement, row):
        return torch.stack([measurement.tensor.min(), measurement.tensor.max()]).double()

    def compute(self, stat, states):
        return states["extremes"][:, 1] - states["extremes"][:, 0]


def watched(stats, steps=1, **rule):
    model = nn.Sequential(nn.Identity(), nn.Identity())
    with instrument(model, [StatsMonitor([Watch(modules="*", tensors="output", stats=stats, **rule)])]) as watching:
        for step in range(steps):
            model(torch.tensor([1.0, 4.0 + step]))
            model(torch.tensor([-2.0, 2.0]))
            watching.step()
    return watching


PATH = f"{__name__}.Extremes"


@pytest.mark.parametrize("spec", [Extremes(), Extremes, PATH, {"class_path": PATH}], ids=["object", "class", "path", "map"])
def test_a_rule_names_an_accumulator_and_its_statistics_are_computed_at_every_step(spec):
    watching = watched(["mean", spec], steps=3)
    found = watching.latest
    assert found["output_span/0"] == found["output_span/1"] == 8.0
    assert set(found) >= {"output_mean/0", "output_span/0"}
    assert watching.view.state("extremes", [0]).tolist() == [[-2.0, 6.0]]


def test_a_row_without_the_accumulator_has_no_value():
    model = nn.Sequential(nn.Identity(), nn.Identity())
    rules = [Watch(modules="0", tensors="output", stats=[Extremes()]), Watch(modules="1", tensors="output", stats="mean")]
    with instrument(model, [StatsMonitor(rules)]) as watching:
        model(torch.tensor([1.0, 4.0]))
        watching.step()
    found = watching.view.stat("output", "span")
    assert found.measured.tolist() == [True, False] and found.values[0] == 3.0 and math.isnan(found.values[1])
    with pytest.raises(RuleError, match="output of 1 keeps no extremes"):
        watching.view.state("extremes", [0, 1])


def test_rows_that_a_rule_groups_are_merged_by_the_columns():
    assert watched([Extremes()], group_by={"both": "*"}).latest["output_span/both"] == 6.0


def test_under_a_loss_scale_the_numbers_are_divided_by_the_power_of_each_column():
    gram = LargestSingularValue(features=2)
    numbers = gram.measure(type("M", (), {"tensor": torch.tensor([[8.0, 0.0]])})(), "")[None]
    assert gram.rescale(numbers, 0.25)[0, 0] == 4.0


class Means(Extremes):
    name, columns = "means", (Column("mean", merge="mean"),)


class Nameless(Extremes):
    name = ""


class Taken(Extremes):
    name, statistics = "taken", ("norm",)


class Slash(Extremes):
    name, statistics = "slash", ("a/b",)


class Powered(Extremes):
    name, columns = "powered", (Column("greatest", merge="max", power=10**400),)


class Empty(Extremes):
    name, columns = "empty", ()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Means(), r"watch\[0\].stats\[0\]: columns of Means are merged by 'sum', 'min' or 'max', got {'mean': 'mean'}"),
        (Nameless(), r"Nameless.name must be a name that no built-in accumulator has, got ''"),
        (Taken(), r"cannot have a statistic 'norm': the name is taken"),
        (Slash(), r"has a statistic 'a/b', which cannot be a part of a tag"),
        (Powered(), r"powers of columns of Powered must be integers from -16 to 16, got {'greatest': 1000.{0,600}$"),
        (Empty(), r"Empty needs at least one column and one statistic"),
        (LargestSingularValue, r"give an object of LargestSingularValue instead of the class"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_invalid_accumulator_is_refused_with_the_rule_and_the_reason(spec, message):
    with pytest.raises(RuleError, match=message):
        resolve(nn.Sequential(nn.Identity()), [Watch(modules="*", stats=[spec])], EveryN())


def test_two_accumulators_of_one_name_are_refused_unless_they_are_one_object():
    one = Extremes()
    model, rules = nn.Sequential(nn.Identity()), [Watch(modules="*", stats=[one]), Watch(modules="0", stats=[one])]
    assert [kept.accumulator for kept in resolve(model, rules, EveryN()).kept] == [one]
    with pytest.raises(RuleError, match="another accumulator is called 'extremes'"):
        resolve(model, [*rules, Watch(modules="0", stats=[Extremes()])], EveryN())


def test_a_function_with_the_name_of_an_accumulators_statistic_gets_another_name():
    def span(tensor):
        return tensor.max()

    found = watched([Extremes(), span]).latest
    assert found["output_span/0"] == 6.0 and "output_span_2/0" in found
