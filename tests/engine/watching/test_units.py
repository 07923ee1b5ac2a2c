"""Statistics of units: exact over calls and micro-batches, at their own schedule, in Python and in the compiled writer."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from lightning_hooks import RuleError, StatsMonitor, Units, Watch, instrument
from lightning_hooks.stats import schema
from lightning_hooks.stats.units.statistics import NAMES, compute
from tests.consumers import Keeps


def net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 10), nn.Tanh())
    with torch.no_grad():
        model[0].weight[2] = 0.0
        model[0].bias[2] = -1.0  # makes this channel dead after the ReLU
        model[3].weight[7] *= 1e4
    return model


def outputs_of(model, batches):
    found = {str(i): [] for i in range(len(model))}
    for batch in batches:
        x = batch
        for i, layer in enumerate(model):
            x = layer(x)
            found[str(i)].append(x.detach().double())
    return found


AXES = {"0": 1, "1": 1, "2": 1, "3": 1, "4": 1}


def expected(tensors, axis, stat, heads=None):
    """A statistic over all elements of a step, computed separately in float64."""
    every = torch.cat([tensor.movedim(axis, -1).reshape(-1, tensor.shape[axis]) for tensor in tensors])
    if heads is not None:
        every = every.unflatten(1, (heads, -1)).movedim(1, -1).reshape(-1, heads)
    units = torch.stack([every.sum(0), every.square().sum(0), every.abs().amax(0), (every == 0).sum(0)], dim=1).numpy()
    return compute(stat, units, float(len(every)), bool((every >= 0).all()))


def batches_of(step, micro_batches=2):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(4, 3, 6, 6, generator=generator) for _ in range(micro_batches)]


def train(model, watch, steps=3, **options):
    keeps = Keeps()
    with instrument(model, [StatsMonitor(watch, consumers=[keeps])], **options) as watched:
        for step in range(steps):
            for batch in batches_of(step):
                model(batch).sum().backward()
            watched.step()
    return keeps.views


@pytest.mark.parametrize("heads", [None, 2])
def test_every_statistic_is_that_of_all_elements_of_the_step(heads):
    model = net()
    views = train(model, [Watch(modules="*", tensors="output", units=Units(heads=heads), every_n_steps=1)])
    for step, view in enumerate(views):  # Python measures the first step, the compiled writer the later ones.
        outputs = outputs_of(model, batches_of(step))
        for stat in NAMES:
            found = view.stat("output", stat)
            for name, value in zip(found.names, found.values, strict=True):
                wanted = expected(outputs[name], AXES[name], stat, heads)
                assert value == pytest.approx(wanted, rel=1e-6, nan_ok=True), (step, name, stat)
        assert view.stat("output", "dead_units").values[1] == (0.125 if heads is None else 0.0)


def test_the_moments_beside_units_are_those_without():
    plain, beside = (
        train(
            net(),
            [Watch(modules="*", tensors=["output", "output_grad"], stats=["mean", "std", "histogram", *more], every_n_steps=1)],
        )
        for more in ([], ["dead_units"])
    )
    for one, other in zip(plain, beside, strict=True):
        measured = [column for column in range(len(schema.MOMENTS)) if column != schema.ABS_SUM]  # which no rule asks for
        np.testing.assert_allclose(one.moments[:, measured], other.moments[:, measured], rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(one.kept["histogram"], other.kept["histogram"])


def test_units_are_measured_at_every_tenth_step_and_the_rest_at_every_step():
    views = train(net(), [Watch(modules="1", tensors="output", units="auto")], steps=20)
    is_there = [view.stat("output", "dead_units").measured.item() for view in views]
    assert [step for step, there in enumerate(is_there) if there] == [9, 19]
    assert all(view.stat("output", "mean").measured.all() for view in views)
    assert np.isnan(views[0].stat("output", "dead_units").values).all()


def test_gradients_of_outputs_have_units_too():
    model, views = net(), None
    views = train(model, [Watch(modules="*", tensors="output_grad", stats=["dead_units"], every_n_steps=1)])
    assert views[-1].stat("output_grad", "dead_units").values[0] == 0.125  # No gradient flows through the dead channel.
    assert views[-1].stat("output_grad", "dead_units").measured.all()


def test_numbers_of_each_unit_are_there_where_a_rule_asks():
    model = net()
    rules = [
        Watch(modules="1", tensors="output", units=Units(1, vectors=True)),
        Watch(modules="3", tensors="output", units="auto"),
    ]
    view = train(model, [*rules], steps=10)[-1]
    outputs = torch.cat(outputs_of(model, batches_of(9))["1"]).movedim(1, 0).flatten(1)
    assert {(view.rows.names[row], name) for row, name in view.vectors} == {
        ("1", n) for n in ("abs_max", "rms", "mean", "zero_fraction")
    }
    row = view.rows.names.index("1")
    np.testing.assert_allclose(view.vectors[row, "abs_max"], outputs.abs().amax(1), rtol=1e-6)
    np.testing.assert_allclose(view.vectors[row, "mean"], outputs.mean(1), rtol=1e-6)
    np.testing.assert_allclose(view.vectors[row, "rms"], outputs.square().mean(1).sqrt(), rtol=1e-6)
    np.testing.assert_allclose(view.vectors[row, "zero_fraction"], (outputs == 0).double().mean(1), rtol=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        view.vectors[row, "mean"][0] = 1.0


def test_a_row_whose_number_of_units_changes_is_named_once_and_has_none():
    model = nn.Sequential(nn.Identity())
    rule = Watch(modules="0", tensors="output", stats=["mean", "dead_units"], every_n_steps=1)
    with (
        pytest.warns(
            UserWarning, match=r"the units of output of 0 are not measured: it had 4 units along dimension 1, and now has 5"
        ),
        instrument(model, [StatsMonitor([rule])]) as watched,
    ):
        for width in (4, 5, 6):
            model(torch.ones(2, width))
            watched.step()
            assert watched.latest["output_mean/0"] == 1.0
    assert np.isnan(watched.view.stat("output", "dead_units").values).all()


def test_tensors_without_units_are_measured_without_them():
    model = nn.Sequential(nn.Identity())
    rule = Watch(modules="0", tensors="output", stats=["mean", "dead_units"], every_n_steps=1)
    with (
        pytest.warns(UserWarning, match="its tensors have no units that can be read"),
        instrument(model, [StatsMonitor([rule])]) as watched,
    ):
        for _ in range(2):
            model(torch.tensor(3.0))
            watched.step()
    assert watched.latest["output_mean/0"] == 3.0 and "output_dead_units/0" not in watched.latest


def test_weights_are_the_same_with_and_without_units():
    def weights(*watch):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with instrument(model, StatsMonitor(watch), optimizer=optimizer) if watch else nullcontext():
            for step in range(4):
                optimizer.zero_grad()
                model(batches_of(step)[0]).sum().backward()
                optimizer.step()
        return [parameter.clone() for parameter in model.parameters()]

    rule = Watch(modules="*", tensors=["input", "output", "output_grad"], units=Units(vectors=True), every_n_steps=1)
    for one, other in zip(weights(), weights(rule), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"params": "*", "units": "auto"}, "units goes with modules, not with params"),
        ({"params": "*", "stats": ["dead_units"]}, r"stats\[0\]: 'dead_units' is a statistic of modules' tensors"),
        (
            {"modules": "*", "units": "channels"},
            "units must be 'auto', Units or a mapping with axis, heads, vectors, got '",
        ),
        ({"modules": "*", "units": True}, "units must be 'auto', Units or a mapping with axis, heads, vectors, got True"),
        ({"modules": "*", "units": 1}, r"got 1; write Units\(axis=1\)"),
        ({"modules": "*", "units": {"head": 1}}, r"units: unknown key 'head' \(did you mean 'heads'"),
        ({"modules": "*", "units": {"heads": 0}}, "units.heads must be an integer of at least 1, got 0"),
        ({"modules": "*", "units": {"axis": "last"}}, "units.axis must be the dimension of the units, got 'last'"),
        ({"modules": "*", "units": {"vectors": 1}}, "units.vectors must be True or False"),
        ({"modules": "*", "units": "auto", "group_by": 1}, "group_by: units of different rows cannot be merged"),
    ],
)
def test_wrong_rules_are_refused_when_they_are_made(fields, message):
    with pytest.raises(RuleError, match=message):
        Watch(**fields)


def test_heads_that_do_not_divide_the_units_are_named():
    with pytest.raises(RuleError, match="heads=3: the 8 units of output of 0 do not form so many groups"):
        train(net(), [Watch(modules="0", tensors="output", units=Units(heads=3), every_n_steps=1)])


def test_two_rules_that_measure_the_units_of_a_row_differently_are_refused():
    rules = [Watch(modules="0", tensors="output", units=Units(1)), Watch(modules="*", tensors="output", units=Units(-1))]
    with pytest.raises(RuleError, match=r"watch\[1\].units: another rule measures the units of output of 0 with axis=1"):
        instrument(net(), [StatsMonitor(rules)])
