"""Reading many views at once gives the numbers that each view gives alone."""

import numpy as np
import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, Watch, instrument
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.reading import Reader
from lightning_hooks.stats.statistics import MAGNITUDE_STATS, STATISTICS
from tests.consumers import Keeps
from tests.health.views import index_of, view_of

NEEDS = [
    *((tensor, stat) for tensor in ("output", "param", "grad", "update") for stat in (*STATISTICS, "count")),
    ("update", "ratio"),
    ("grad", "cosine"),
    ("grad", "p90"),
    *(("output", stat) for stat in ("dead_units", "load_cv", "effective_units", "top_unit")),
]


@pytest.fixture(scope="module")
def views():
    torch.manual_seed(0)
    model, keeps = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), Keeps()
    model[2].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = [
        Watch(modules="*", tensors="output", stats=["rms", "dead_units", "load_cv"], units="auto"),
        Watch(params="*", tensors=["grad", "param", "update"], stats=["norm"]),
        Watch(params="*.weight", tensors="grad", stats=["cosine", "p90", "abs_mean"]),
        Watch(params="*", tensors="update", stats="ratio"),
    ]
    with instrument(model, [StatsMonitor(rules, consumers=[keeps])], optimizer=optimizer):
        for step in range(23):
            model(torch.full((2, 3), float(step + 1))).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return keeps.views


@pytest.mark.parametrize("tensor, stat", NEEDS)
def test_many_views_give_what_each_gives(views, tensor, stat):
    reader = Reader(views[0].rows, NEEDS)
    found = reader.read((tensor, stat), views)
    rows, names = views[0].rows.of(tensor)
    assert reader.columns[tensor].names == names and found.shape == (len(views), len(names))
    kept = [i for i, name in enumerate(names) if stat not in ("cosine", "p90") or name.endswith("weight")]
    expected = np.full(found.shape, np.nan)
    expected[:, kept] = [view.values(stat, rows[kept]) for view in views]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert not np.isnan(found).all()


def test_units_are_read_from_the_steps_that_measured_them(views):
    evidence = Evidence([("output", "dead_units")])
    for view in views:
        evidence.add(view)
    measured = ~np.isnan(evidence.track("output", "dead_units").values)
    assert np.flatnonzero(measured.any(axis=1)).tolist() == [9, 19]


def test_what_is_not_measured_is_none(views):
    keys = [("state.step", "mean"), ("param", "cosine"), ("grad", "medain"), ("", "run/nothing")]
    reader = Reader(views[0].rows, keys)
    assert [reader.read(key, views) for key in keys] == [None] * 4


@pytest.mark.parametrize("stat", MAGNITUDE_STATS)
def test_magnitudes_are_none_unless_a_rule_asks_for_them(stat):
    index = index_of([("param", "a")])
    assert Reader(index, [("param", stat)]).read(("param", stat), [view_of(0, index, [1])]) is None
