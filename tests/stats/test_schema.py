"""A moment or a statistic that is added to the schema is measured, merged and written like the present ones."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_hooks import RuleError, Watch
from lightning_hooks.stats import kernels, moments, schema
from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.statistics import DEFAULT_STATS, NAMES, STATISTICS
from tests import forked

ROOT = Path(__file__).parents[2]
ADDED = """
import sys
from lightning_hooks.rules import statistics
at = statistics.NAMES.index("ratio")
statistics.NAMES = (*statistics.NAMES[:at], "range", "mean_to_max", *statistics.NAMES[at:])
from lightning_hooks.stats import schema
schema.STATISTICS += (
    schema.Statistic("range", lambda m: m[..., schema.MAX] - m[..., schema.MIN], (schema.MIN, schema.MAX)),
    schema.Statistic(
        "mean_to_max",
        lambda m: m[..., schema.ABS_SUM] / m[..., schema.COUNT] / m[..., schema.MAX],
        (schema.ABS_SUM, schema.COUNT, schema.MAX),
    ),
)
import torch
from lightning import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import TensorBoardLogger
from lightning_hooks import RuleError, StatsMonitor, Watch, instrument, read_run

model = torch.nn.Sequential(torch.nn.Linear(2, 2))
added = ["range", "mean_to_max"]
with instrument(model, StatsMonitor([Watch(modules="0", tensors="output", stats=[*added, "max", "min"])])) as watched:
    out = model(torch.ones(1, 2))
    out.sum().backward()
    watched.step()
values = {tag: value for tag, value in watched.latest.items() if any(stat in tag for stat in added)}
out = out.detach().double()
assert sorted(values.values()) == sorted([float(out.max() - out.min()), float(out.abs().mean() / out.max())]), values

try:
    Watch(modules="0", stats="rang")
except RuleError as error:
    assert "range" in str(error), error  # the message lists it, and suggests it
else:
    raise AssertionError("an unknown statistic was accepted")

rules = [Watch(modules="layer", tensors="output", stats=added)]
logger = TensorBoardLogger(sys.argv[1], name="", version="")
trainer = Trainer(
    max_steps=2, logger=logger, callbacks=[StatsMonitor(rules, every_n_steps=1)], enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0, accelerator="cpu",
)
trainer.fit(BoringModel())
run = read_run(sys.argv[1])
print(*[f"{tensor}.{stat}" for tensor, stat in run.tensors()])
print(*sorted(run.scalars))
"""


def test_a_statistic_of_the_moments_is_one_line_of_the_schema_and_its_name(tmp_path):
    """An added statistic can be named in rules, is computed, and occurs in the table, in tags and in messages."""
    done = forked.run(["-c", ADDED, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    tables, scalars = done.stdout.splitlines()[-2:]
    assert {"output.range", "output.mean_to_max"} <= set(tables.split())
    assert {"watch/output_range/layer", "watch/output_mean_to_max/layer"} <= set(scalars.split())


@pytest.mark.parametrize("page", ["docs/rules.md", "docs/statistics.md"])
def test_the_pages_name_every_statistic(page):
    text = (ROOT / page).read_text()
    assert [name for name in (*NAMES, *PAIR_STATS) if f"`{name}`" not in text and name != "p50"] == []


def test_the_defaults_are_those_of_the_docstring():
    assert all(f"`{name}`" in Watch.__doc__ for name in (*DEFAULT_STATS, "ratio"))
    assert set(DEFAULT_STATS) <= {stat.name for stat in schema.STATISTICS}


def test_a_statistic_that_is_not_there_is_an_error():
    with pytest.raises(RuleError, match="nonfinit"):
        Watch(modules="0", tensors="output", stats=["nonfinit"])
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


@pytest.mark.parametrize("stat", schema.STATISTICS, ids=lambda stat: stat.name)
def test_a_statistic_reads_only_the_moments_that_it_names(stat):
    rows = kernels.measure_many([torch.tensor([1.0, -3.0, 0.0]), torch.tensor([2.0, 2.0, 5.0])]).numpy()
    others = [column for column in range(len(schema.MOMENTS)) if column not in stat.reads]
    spoilt = rows.copy()
    spoilt[:, others] = np.nan
    np.testing.assert_array_equal(stat.formula(spoilt), stat.formula(rows))
