"""A step view computes the statistics of a finished step, and does not change."""

import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from lightning_hooks import RuleError, StatsMonitor, StepView, Watch, instrument
from lightning_hooks.stats.schema import COUNT
from lightning_hooks.stats.statistics import MAGNITUDE_STATS, STATISTICS
from tests import late_copies
from tests.consumers import Keeps


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def watch(*rules, steps=1, model=None):
    model, keeps = model or net(), Keeps()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with instrument(model, [StatsMonitor(rules, consumers=[keeps])], optimizer=optimizer):
        for step in range(steps):
            for micro in range(2):
                model(torch.full((2, 3), float(step + micro + 1))).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return keeps.views


def test_any_statistic_of_the_moments_whether_asked_for_or_not():
    (view,) = watch(Watch(params="*", tensors=["grad", "param", "update"], stats="mean"))
    moments = view.moments[[i for i, tensor in enumerate(view.rows.tensors) if tensor == "grad"]]
    for stat in STATISTICS:
        if stat in MAGNITUDE_STATS:
            continue
        found = view.stat("grad", stat)
        assert found.names == ("0.weight", "0.bias", "2.weight", "2.bias") and found.measured.all()
        np.testing.assert_allclose(found.values, STATISTICS[stat](moments), rtol=1e-12)
    assert view.stat("grad", "count").values.tolist() == [12, 4, 8, 2]
    np.testing.assert_allclose(
        view.stat("update", "ratio").values, view.stat("update", "norm").values / view.stat("param", "norm").values
    )
    assert view.stat("grad", "norm").names is view.stat("grad", "mean").names


def test_numbers_are_merged_over_calls():
    model = net()
    (view,) = watch(Watch(modules="0", tensors="output", stats="std"), model=copy.deepcopy(model))
    out = torch.cat([model[0](torch.full((2, 3), value)) for value in (1.0, 2.0)])
    assert view.stat("output", "mean").values[0] == pytest.approx(out.mean().item(), rel=1e-6)
    assert view.stat("output", "count").values[0] == 16


@pytest.mark.parametrize(
    "stat, says",
    [
        ("p50", "grad of 0.weight keeps no histogram; ask for 'histogram' or a quantile"),
        ("cosine", "grad of 0.weight keeps no pairs of gradients; ask for 'cosine'"),
        ("noise_scale", "keeps no pairs of gradients; ask for 'noise_scale'"),
        ("ratio", "'ratio' is of an update and its parameter; grad of 0.weight has none"),
        ("abs_mean", "'abs_mean' is not measured unless a rule asks"),
        ("medain", "'medain' is not a statistic of the moments, and no rule asks for it"),
    ],
)
def test_a_statistic_without_its_state_is_an_error_that_says_what_to_request(stat, says):
    (view,) = watch(Watch(params="*", tensors="grad", stats="mean"))
    with pytest.raises(RuleError, match=says):
        view.stat("grad", stat)


def test_a_tensor_of_which_there_is_no_row_is_an_error():
    (view,) = watch(Watch(params="*", tensors="grad", stats="mean"))
    with pytest.raises(RuleError, match="no row has the tensor 'output'; the tensors of this view are grad, loss$"):
        view.stat("output", "mean")


def test_what_rules_keep_can_be_asked_for():
    def largest(tensor):
        return tensor.max()

    views = watch(
        Watch(params="*", tensors="grad", stats=["p50", "cosine", "micro_cosine", "noise_scale", largest]),
        Watch(params="*", tensors="param", stats="abs_mean"),
        steps=3,
    )
    last = views[-1]
    for stat in ("p50", "p90", "cosine", "micro_cosine", "largest"):
        assert np.isfinite(last.stat("grad", stat).values).all(), stat
    assert not views[0].stat("grad", "cosine").measured.any() and last.stat("grad", "cosine").measured.all()
    assert len(last.stat("grad", "noise_scale").values) == 4
    assert (last.stat("param", "abs_mean").values > 0).all()
    rows, _ = last.rows.of("grad")
    assert last.histogram(rows).sum(1).tolist() == last.stat("grad", "count").values.tolist()


def test_rows_may_be_given_as_any_sequence_of_indices():
    (view,) = watch(Watch(params="*", tensors="grad", stats=["p50", "cosine"]))
    rows, _ = view.rows.of("grad")
    for stat in ("norm", "count", "p50", "cosine"):
        np.testing.assert_array_equal(view.values(stat, rows.tolist()), view.values(stat, rows))
    np.testing.assert_array_equal(view.histogram((0, 1)), view.histogram(rows[:2]))
    assert view.values("norm", []).shape == (0,)


@pytest.mark.parametrize("rows", [0, [0.0, 1.0], ["0.weight"], [True, False, True, True], [[0], [1]]])
def test_rows_that_are_not_a_sequence_of_indices_are_refused(rows):
    (view,) = watch(Watch(params="*", tensors="grad", stats="p50"))
    for read in (lambda: view.values("norm", rows), lambda: view.histogram(rows)):
        with pytest.raises(RuleError, match=r"rows must be a sequence of indices of rows.* got"):
            read()


def test_groups_are_rows_too():
    (view,) = watch(Watch(params="*", tensors="grad", stats=["norm", "p50"], group_by=1))
    found = dict(zip(*view.stat("grad", "count")[2:4], strict=True))
    assert found["0"] == 16 and found["2"] == 10
    groups = sorted(view.rows.members)
    assert [view.rows.names[i] for i in groups] == ["0", "2"] and view.histogram(np.array(groups)).sum(1).tolist() == [16, 10]


def test_the_row_index_names_the_rows_and_stays_the_same():
    first, second = watch(Watch(modules="*", tensors="output", stats="mean"), Watch(params="0.*", tensors="grad"), steps=2)
    rows = first.rows
    assert rows is second.rows
    assert list(zip(rows.names, rows.tensors, rows.module_types, strict=True)) == [
        ("0", "output", "Linear"),
        ("1", "output", "ReLU"),
        ("2", "output", "Linear"),
        ("0.weight", "grad", "Linear"),
        ("0.bias", "grad", "Linear"),
        ("loss", "loss", ""),
    ]
    assert rows.order == (0, 1, 2)


class Crossed(nn.Module):
    """A module whose children run in another order than that of their definition; the last child never runs."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.idle = (nn.Linear(2, 2) for _ in range(4))

    def forward(self, x):
        return self.b(self.a(self.c(x)))


def test_the_row_index_knows_the_order_of_execution_from_the_first_step_on():
    model, keeps, orders = Crossed(), Keeps(), []
    rules = [Watch(modules="*", tensors=["output", "output_grad"], stats="mean")]
    with (
        instrument(model, [StatsMonitor(rules, consumers=[keeps])]) as watched,
        pytest.warns(UserWarning, match="were not called"),
    ):
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            watched.step()
            rows = keeps.views[-1].rows
            orders.append([f"{rows.tensors[i]} {rows.names[i]}" for i in rows.order])
    ran = [*(f"output {name}" for name in "cab"), *(f"output_grad {name}" for name in "bac")]
    assert orders[0] == orders[1] == [*ran, "output idle", "output_grad idle"]
    for view in keeps.views:
        assert view.stat("output", "count").values.tolist() == [2, 2, 2, 0]


def arrays_of(view):
    return [view.moments, *view.kept.values(), view.rows.of("grad")[0]]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_nothing_in_a_view_changes_and_nothing_can_be_written(late, monkeypatch):
    if late:
        late_copies.install(monkeypatch)
    copies = []

    class Copies(Keeps):
        def consume(self, view):
            super().consume(view)
            copies.append([array.copy() for array in arrays_of(view)])

    model, keeps = net(), Copies()
    rules = [Watch(params="*", tensors="grad", stats=["p50", "micro_cosine", "noise_scale"], group_by=1)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with instrument(model, [StatsMonitor(rules, consumers=[keeps])], optimizer=optimizer):
        for step in range(3):
            for micro in range(2):
                model(torch.full((2, 3), float(step + micro + 1))).square().sum().backward()
            optimizer.step()
    assert [view.step for view in keeps.views] == [0, 1, 2]
    for view, before in zip(keeps.views, copies, strict=True):
        for array, kept in zip(arrays_of(view), before, strict=True):
            np.testing.assert_array_equal(array, kept)
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
    with pytest.raises(AttributeError):
        keeps.views[0].step = 4


def test_a_view_can_be_pickled_without_the_model():
    (view,) = watch(Watch(params="*", tensors="grad", stats="mean"))
    again = pickle.loads(pickle.dumps(view))
    assert len(pickle.dumps(view)) < 20_000
    assert again.stat("grad", "norm").values.tolist() == view.stat("grad", "norm").values.tolist()


def test_rows_that_were_not_due_are_not_measured():
    model, keeps = net(), Keeps()
    rules = [
        Watch(modules="0", tensors="output", stats="mean"),
        Watch(modules="2", tensors="output", stats="mean", every_n_steps=2),
    ]
    with instrument(model, [StatsMonitor(rules, consumers=[keeps])]) as watched:
        for _ in range(2):
            model(torch.ones(1, 3))
            watched.step()
    assert [view.stat("output", "mean").measured.tolist() for view in keeps.views] == [[True, False], [True, True]]
    assert np.isnan(keeps.views[0].stat("output", "mean").values).tolist() == [False, True]
    assert keeps.views[0].moments[1, COUNT] == 0


def largest(tensor):
    return tensor.max()


def test_a_row_without_your_own_statistic_is_not_measured():
    rules = [Watch(params="0.*", tensors="grad", stats=largest), Watch(params="2.*", tensors="grad", stats="mean")]
    (view,) = watch(*rules)
    assert view.stat("grad", "largest").measured.tolist() == [True, True, False, False]
    assert view.stat("grad", "mean").measured.all()


def test_a_group_has_only_the_statistics_of_your_own_that_its_rule_asks_for():
    rules = [Watch(params="0.weight", tensors="grad", stats=largest), Watch(params="*", tensors="grad", group_by={"all": "*"})]
    (view,) = watch(*rules)
    found = view.stat("grad", "largest")
    assert dict(zip(found.names, found.measured, strict=True))["all"] is np.False_ and np.isnan(found.values[-1])
    (view,) = watch(rules[0], Watch(params="*", tensors="grad", stats=largest, group_by={"all": "*"}))
    assert view.stat("grad", "largest").measured.all()


def test_a_ratio_is_measured_only_if_the_parameter_was_measured():
    rules = [Watch(params="*", tensors="update", stats="norm"), Watch(params="*", tensors="param", every_n_steps=2)]
    first, second = watch(*rules, steps=2)
    assert not first.stat("update", "ratio").measured.any() and first.stat("update", "norm").measured.all()
    assert second.stat("update", "ratio").measured.all() and np.isfinite(second.stat("update", "ratio").values).all()


def test_a_view_without_rows():
    view = StepView(3, summaries={"a": 1.0})
    assert len(view.rows) == 0 and view.moments.shape == (0, 9) and view.stage == "train"


@pytest.mark.parametrize("name", ["summaries", "kept", "metrics"])
@pytest.mark.parametrize(
    "write",
    [
        lambda mapping, key: mapping.__setitem__(key, 5.0),
        lambda mapping, key: mapping.__delitem__(key),
        lambda mapping, key: mapping.__ior__({key: 5.0}),
        lambda mapping, key: mapping.update({key: 5.0}),
        lambda mapping, key: mapping.setdefault("new", 5.0),
        lambda mapping, key: mapping.pop(key),
        lambda mapping, key: mapping.popitem(),
        lambda mapping, key: mapping.clear(),
    ],
    ids=["set", "delete", "or", "update", "setdefault", "pop", "popitem", "clear"],
)
def test_a_consumer_cannot_write_into_a_view(name, write):
    given = {(0, "mine"): 1.0}
    view = StepView(1, **{name: given})
    with pytest.raises(TypeError, match="a step view is read-only; change a copy"):
        write(getattr(view, name), (0, "mine"))
    given[0, "mine"] = 2.0
    assert getattr(view, name) == {(0, "mine"): 1.0}


def test_the_mappings_of_a_view_can_be_copied_pickled_printed_and_written():
    view = StepView(1, summaries={"a": 1.0}, metrics={(0, "mine"): 2.0})
    for new in (copy.copy(view), copy.deepcopy(view), pickle.loads(pickle.dumps(view)), dataclasses.replace(view, step=2)):
        assert (new.summaries, new.metrics) == ({"a": 1.0}, {(0, "mine"): 2.0})
        with pytest.raises(TypeError):
            new.summaries["a"] = 3.0
    assert "summaries={'a': 1.0}" in repr(view)
    assert json.loads(json.dumps(view.summaries)) == dataclasses.asdict(view)["summaries"] == {"a": 1.0}
    plain = dict(view.summaries) | view.summaries
    plain["a"] = 3.0
    assert view.summaries["a"] == 1.0
