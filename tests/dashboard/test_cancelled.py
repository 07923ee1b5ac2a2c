"""Biases that the norm behind their layer takes away, by the order in which modules ran or were defined."""

import pytest

from lightning_hooks.dashboard.cancelled import cancelled_biases

NAMES = ("conv.weight", "conv.bias", "norm.bias", "head.bias")


def about(*kinds):
    """The facts about modules that ran in this order."""
    return {name: {"type": kind, "order": i} for i, (name, kind) in enumerate(kinds)}


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([("conv", "Conv2d"), ("norm", "BatchNorm2d"), ("head", "Linear")], {"conv.bias"}),
        ([("conv", "Conv2d"), ("norm", "InstanceNorm1d"), ("head", "Linear")], {"conv.bias"}),
        ([("conv", "Conv2d"), ("norm", "LayerNorm"), ("head", "Linear")], set()),  # keeps what differs between units
        ([("norm", "BatchNorm2d"), ("conv", "Conv2d"), ("head", "Linear")], set()),
        ([("conv", "Conv2d"), ("act", "ReLU"), ("norm", "BatchNorm2d")], set()),
    ],
)
def test_a_bias_is_cancelled_if_a_norm_over_samples_is_next(kinds, expected):
    assert cancelled_biases(NAMES, about(*kinds)) == expected


def test_containers_do_not_count_as_the_next_module():
    kinds = [("block", "Sequential"), ("block.0", "Linear"), ("other", "Sequential"), ("other.0", "BatchNorm1d")]
    assert cancelled_biases(["block.0.bias"], about(*kinds)) == {"block.0.bias"}


def test_without_an_order_of_execution_that_of_definition_counts_and_damage_is_ignored():
    modules = [["conv", "Conv2d", {}], ["norm", "BatchNorm2d", {}], ["head"], 3, ["x", None, {}]]
    assert cancelled_biases(NAMES, {}, [None, {"modules": 7}, {"modules": modules}]) == {"conv.bias"}
    assert cancelled_biases(NAMES, {"conv": {"type": "Conv2d"}}) == frozenset()
