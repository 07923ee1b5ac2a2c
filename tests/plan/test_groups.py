"""A group has the statistics of one tensor that holds all elements of its rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import NoMatchError, RuleError, StatsMonitor, Watch, instrument, match


def tower(layers: int = 4) -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(layers)))
    return nn.ModuleDict({"body": body, "head": nn.Linear(6, 2)})


def run(model: nn.Module, watch: list[Watch], optimizer: torch.optim.Optimizer | None = None) -> dict[str, float]:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    with instrument(model, [StatsMonitor(watch)], optimizer=optimizer) as watched:
        model["head"](model["body"](x)).square().sum().backward()
        if optimizer is None:
            watched.step()
        else:
            optimizer.step()
    return watched.latest


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


STATS = ["mean", "std", "norm", "rms", "abs_mean", "min", "max", "zero_fraction", "nonfinite"]


def test_a_block_has_the_statistics_of_one_tensor_with_all_its_elements() -> None:
    model = tower()
    values = run(model, [Watch(params="*", tensors="grad", stats=STATS, group_by=2)])
    assert set(tag.partition("/")[2] for tag in values if tag.startswith("grad_")) == {
        "body.0", "body.1", "body.2", "body.3", "head.weight", "head.bias",
    }  # fmt: skip
    whole = flat([p.grad for p in model["body"][1].parameters()])
    expected = {
        "mean": whole.mean(), "std": whole.std(correction=0), "norm": whole.norm(), "rms": whole.square().mean().sqrt(),
        "abs_mean": whole.abs().mean(), "min": whole.min(), "max": whole.max(), "zero_fraction": torch.tensor(0.0),
        "nonfinite": torch.tensor(0.0),
    }  # fmt: skip
    for stat, value in expected.items():
        assert values[f"grad_{stat}/body.1"] == pytest.approx(value.item(), rel=1e-6, abs=1e-9), stat


def test_each_pattern_makes_a_group_the_first_match_counts_and_other_rows_stay_ungrouped() -> None:
    model = tower()
    values = run(model, [Watch(params="*", tensors="grad", stats="norm", group_by=["body.0.*", "body.*"])])
    assert set(values) - {"run/grad_norm", "run/loss", "run/nonfinite"} == {
        "grad_norm/body.0.*", "grad_norm/body.*", "grad_norm/head.weight", "grad_norm/head.bias",
    }  # fmt: skip
    first = flat([p.grad for p in model["body"][0].parameters()]).norm()
    rest = flat([p.grad for layer in list(model["body"])[1:] for p in layer.parameters()]).norm()
    assert values["grad_norm/body.0.*"] == pytest.approx(first.item(), rel=1e-6)
    assert values["grad_norm/body.*"] == pytest.approx(rest.item(), rel=1e-6)
    assert values["run/grad_norm"] == pytest.approx(flat([p.grad for p in model.parameters()]).norm().item(), rel=1e-6)


def test_a_mapping_names_the_groups() -> None:
    model = tower()
    rule = Watch(
        modules="body.*", types="Tanh", tensors="output", stats=["max", "histogram", "p50"], group_by={"low": "body.[01].*"}
    )
    assert rule.group_by == (("low", "body.[01].*"),)
    assert eval(repr(rule)) == rule
    values = run(model, [rule])
    assert {tag.partition("/")[2] for tag in values if tag.startswith("output_max")} == {"low", "body.2.1", "body.3.1"}


def test_histograms_and_quantiles_of_a_group_are_those_of_all_its_elements() -> None:
    model = tower()
    together = run(model, [Watch(params="body.*.weight", tensors="param", stats=["p50", "p99"], group_by={"all": "*"})])
    one = nn.ModuleDict({"body": nn.Identity(), "head": nn.Linear(6, 24)})
    with torch.no_grad():
        one["head"].weight.copy_(flat([layer[0].weight for layer in model["body"]]).float().view(24, 6))
    with instrument(one, [StatsMonitor([Watch(params="head.weight", tensors="param", stats=["p50", "p99"])])]) as watched:
        watched.step()
    for stat in ("p50", "p99"):
        assert together[f"param_{stat}/all"] == pytest.approx(watched.latest[f"param_{stat}/head.weight"], rel=1e-9)


def test_the_ratio_of_a_group_is_that_of_the_norms_of_the_whole_group() -> None:
    model = tower()
    before = flat([p.clone() for p in model["body"].parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = run(model, [Watch(params="body.*", tensors="update", stats="ratio", group_by=1)], optimizer)
    after = flat(list(model["body"].parameters()))
    assert values["update_ratio/body"] == pytest.approx(((after - before).norm() / before.norm()).item(), rel=1e-5)
    assert not any(tag.startswith("param_") for tag in values)


def largest(tensor: Tensor) -> Tensor:
    return tensor.abs().max()


def test_a_function_of_a_group_is_the_mean_weighted_by_elements() -> None:
    model = tower()
    values = run(model, [Watch(params="head.*", tensors="param", stats=[largest], group_by=1)])
    weight, bias = model["head"].weight.detach().abs(), model["head"].bias.detach().abs()
    expected = (weight.max() * 12 + bias.max() * 2) / 14
    assert values["param_largest/head"] == pytest.approx(expected.item(), rel=1e-6)


def test_one_rule_can_group_the_rows_that_another_rule_writes_alone() -> None:
    model = tower()
    rules = [Watch(params="*", tensors="grad", stats="norm", group_by=1), Watch(params="head.*", tensors="grad", stats="max")]
    values = run(model, rules)
    assert {"grad_norm/body", "grad_norm/head", "grad_max/head.weight", "grad_max/head.bias"} <= set(values)
    assert "grad_norm/head.weight" not in values


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            [{"params": "*", "group_by": 0}],
            "watch[0].group_by must be a depth of at least 1, patterns, or a mapping of names to patterns, got 0",
        ),
        ([{"params": "*", "group_by": []}], "watch[0].group_by is empty; give at least one pattern or omit it"),
        (
            [{"params": "*", "tensors": "grad"}, {"params": "*", "tensors": "grad", "stats": "norm", "group_by": 9}],
            "watch[1].group_by: 'grad_norm/body.0.0.weight' would be written twice: it is a row too; give the group another "
            "name with a mapping of names to patterns",
        ),
    ],
)  # fmt: skip
def test_an_invalid_group_by_is_named(rules: list[Any], message: str) -> None:
    with pytest.raises(RuleError) as caught:
        match(tower(), rules=rules)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ([Watch(modules="*", stats="mean"), Watch(modules="*", stats="norm", group_by=1)], "'output' has another .* 'body'"),
        (
            [Watch(params=f"*.{each}", stats=stat, group_by=1) for each, stat in (("weight", "norm"), ("bias", "mean"))],
            "'param' has another .* 'body'",
        ),
    ],
)
def test_two_groups_of_one_name_with_different_elements_are_refused(rules: list[Watch], name: str) -> None:
    with pytest.raises(RuleError, match=rf"^watch\[1\].group_by: {name}, of other elements, and their counts"):
        match(tower(), rules=rules)


def test_two_groups_of_one_name_with_the_same_elements_are_accepted() -> None:
    rules = [Watch(params="*", tensors="grad", stats=stat, group_by=2) for stat in ("norm", "mean")]
    values = run(tower(), [*rules, Watch(params="head.*", tensors="grad", stats="max")])
    assert {"grad_norm/head.bias", "grad_mean/head.bias", "grad_max/head.bias", "grad_mean/body.0"} <= set(values)


def test_a_pattern_of_a_group_that_matches_nothing_offers_the_nearest() -> None:
    with pytest.raises(NoMatchError, match=r"^watch\[0\].group_by: 'bdy.*' matches nothing; the nearest names are 'body"):
        match(tower(), rules=[{"params": "*", "group_by": ["bdy.*"]}])


def test_a_metric_cannot_be_merged() -> None:
    with pytest.raises(RuleError, match=r"^watch\[0\].group_by: the metric 'MeanMetric' of different rows cannot be merged"):
        match(tower(), rules=[{"params": "*", "tensors": "grad", "stats": "torchmetrics.MeanMetric", "group_by": 1}])


def test_match_shows_the_groups_and_their_rows() -> None:
    found = match(tower(2), rules=[Watch(params="*.weight", tensors="grad", stats="norm", group_by=1)])
    lines = [(line.name, line.type, line.statistics, line.tags, line.note) for line in found.lines]
    assert lines == [
        ("body.0.0.weight", "Parameter", "", 0, "merged into body"),
        ("body.1.0.weight", "Parameter", "", 0, "merged into body"),
        ("head.weight", "Parameter", "", 0, "merged into head"),
        ("body", "group of 2", "norm", 1, ""),
        ("head", "group of 1", "norm", 1, ""),
    ]
