"""One table of moments and one of statistics: whatever is added there is measured, merged and written like the others."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from lightning_hooks import RuleError, Watch, instrument
from lightning_hooks.stats import kernels, moments, schema
from lightning_hooks.stats.statistics import STATISTICS

ADDED = """
from lightning_hooks.stats import schema
schema.STATISTICS += (schema.Statistic("range", lambda m: m[:, schema.MAX] - m[:, schema.MIN]),)
import torch
from lightning_hooks import Watch, instrument
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
with instrument(model, watch=[Watch(modules="0", tensors="output", stats=["max", "min", "range"])]) as watched:
    out = model(torch.ones(1, 2))
    out.sum().backward()
    watched.step()
values = [value for tag, value in watched.compute().items() if "range" in tag]
assert values == [float(out.detach().double().max() - out.detach().double().min())]
"""


def test_a_statistic_is_one_line_of_the_schema():
    done = subprocess.run([sys.executable, "-c", ADDED], capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 0, done.stderr


def test_a_statistic_that_is_not_there_is_an_error():
    with (
        pytest.raises(RuleError, match="nonfinit"),
        instrument(
            torch.nn.Sequential(torch.nn.Linear(1, 1)), watch=[Watch(modules="0", tensors="output", stats=["nonfinit"])]
        ),
    ):
        pass
    assert list(STATISTICS) == [stat.name for stat in schema.STATISTICS]


def test_the_kernels_know_the_moments_of_the_schema():
    row = kernels.measure(torch.tensor([3.0, -1.0, 0.0, 1e-40, float("inf")]))
    want = {"count": 5, "min": -1, "max": np.inf, "zeros": 1, "nonfinite": 1, "underflow": 1}
    found = dict(zip((moment.name for moment in schema.MOMENTS), row.tolist(), strict=True))
    assert {name: found[name] for name in want} == want
    assert [moment.neutral for moment in schema.MOMENTS] == moments.neutral(1)[0].tolist()


@pytest.mark.parametrize("moment", range(moments.MOMENTS), ids=[moment.name for moment in schema.MOMENTS])
def test_each_moment_merges_and_scales_as_the_schema_says(moment):
    torch.manual_seed(0)
    parts = [torch.randn(n, dtype=torch.float64) for n in (5, 3, 0)]
    rows = torch.stack([kernels.measure(part) for part in parts])
    whole = kernels.measure(torch.cat(parts))[moment]
    by_index = moments.merge_by_index(rows, torch.zeros(3, dtype=torch.int64), 2)
    torch.testing.assert_close(moments.merge_groups(rows)[moment], whole)
    torch.testing.assert_close(by_index[:, moment], torch.stack([whole, moments.neutral(1)[0, moment]]))
    if schema.MOMENTS[moment].merge == "sum":
        torch.testing.assert_close(rows[:, moment].sum(), whole)
    scaled = kernels.measure(torch.cat(parts) * 4)[moment]
    torch.testing.assert_close(moments.rescale(moments.merge_groups(rows), 4.0)[moment], scaled)
