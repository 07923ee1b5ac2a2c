"""Step views read from a run are those that its consumers got: every statistic, to the rounding of float32."""

import math

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torchmetrics import MaxMetric

from examples.singular_value import LargestSingularValue
from lightning_hooks import RuleError, StatsMonitor, Units, Watch, read_run
from lightning_hooks.records.entry import LogEntry
from lightning_hooks.records.layout import EntryLayout
from lightning_hooks.stats.schema import STATISTICS
from lightning_hooks.stats.units.statistics import NAMES as UNIT_STATS
from lightning_hooks.tensorboard import StepEventWriter
from tests.callbacks.models import Net, ValNet, data, trainer_of
from tests.consumers import Keeps


def largest(tensor):
    return tensor.abs().max()


def fit(folder, monitor, model=None, steps=4, **options):
    logger = TensorBoardLogger(folder, name="", version="run")
    trainer = trainer_of(folder, monitor, logger=logger, max_steps=steps, **options)
    trainer.fit(model or ValNet(), data(8), data(2))
    return read_run(folder / "run")


def assert_equal(read, live, others=()):
    assert (read.step, read.stage, read.ranks, read.due) == (live.step, live.stage, live.ranks, live.due)
    assert read.wall_time == pytest.approx(live.wall_time)
    for field in ("names", "tensors", "module_types", "members", "order", "param_row_of", "magnitudes"):
        assert getattr(read.rows, field) == getattr(live.rows, field), field
    assert read.summaries == pytest.approx(dict(live.summaries), rel=1e-6, nan_ok=True)
    magnitudes = live.rows.magnitudes
    stats = [stat.name for stat in STATISTICS if magnitudes or not stat.magnitudes]
    for tensor in dict.fromkeys(live.rows.tensors):
        for stat in (*stats, "count"):
            mine, theirs = read.stat(tensor, stat), live.stat(tensor, stat)
            assert mine.names == theirs.names
            np.testing.assert_array_equal(mine.measured, theirs.measured, err_msg=f"{tensor} {stat}")
            size = live.stat(tensor, "abs_max").values if stat == "mean" else 0.0
            assert (np.abs(mine.values - theirs.values) <= 1e-6 * (np.abs(theirs.values) + size))[theirs.measured].all(), stat
    for tensor, stat in others:
        mine, theirs = read.stat(tensor, stat), live.stat(tensor, stat)
        np.testing.assert_array_equal(mine.measured, theirs.measured, err_msg=stat)
        bound = 1e-6 if "cosine" in stat else 1e-12  # a difference of two sums, from -1 to 1
        np.testing.assert_allclose(mine.values, theirs.values, rtol=1e-6, atol=bound, err_msg=stat)


EVERYTHING = [
    Watch(modules="body.*", tensors=["output", "output_grad"], stats=["mean", "abs_mean", "p50", largest, MaxMetric]),
    Watch(modules="body.0", tensors="output", stats=[LargestSingularValue(8)], every_n_steps=2),
    Watch(params="*", tensors=["grad", "update"], stats=["norm", "ratio", "cosine", "micro_cosine", "noise_scale"]),
    Watch(params="*.weight", tensors="param", stats=["rms"], group_by={"weights": "*"}),
]


@pytest.mark.parametrize("prefix", ["", "mine/"])
def test_views_read_back_are_those_of_the_run(tmp_path, prefix):
    keeps = Keeps()
    monitor = StatsMonitor(EVERYTHING, consumers=[keeps], prefix=prefix, stages=["train", "validate"])
    run = fit(tmp_path, monitor, accumulate_grad_batches=2)
    others = [("output", "p50"), ("output", "largest"), ("output", "MaxMetric"), ("update", "ratio")]
    others += [("grad", stat) for stat in ("cosine", "micro_cosine", "noise_scale")]
    live = [view for view in keeps.views if view.stage == "train"]
    read = [*run.views(prefix=prefix)]
    assert len(read) == len(live) == 4
    for mine, theirs in zip(read, live, strict=True):
        assert_equal(mine, theirs, others)
        if theirs.step % 2:
            assert_equal(mine, theirs, [("output", "largest_singular_value")])
    (validation,) = [view for view in keeps.views if view.stage == "validate"][-1:]
    assert_equal([*run.views("validate", prefix)][-1], validation, [("output", "p50")])


def test_statistics_of_units_and_the_numbers_of_each_unit_are_read_back(tmp_path):
    keeps = Keeps()
    rule = Watch(modules="body.*", tensors="output", units=Units(vectors=True), every_n_steps=2)
    run = fit(tmp_path, StatsMonitor([rule], consumers=[keeps]))
    for mine, theirs in zip(run.views(), keeps.views, strict=True):
        assert_equal(mine, theirs, [("output", stat) for stat in UNIT_STATS])
    row = theirs.rows.names.index("body.1")
    table = run.table("units of output/body.1", "abs_max")
    assert table.names == tuple(map(str, range(8))) and table.steps.tolist() == [1, 3]
    np.testing.assert_allclose(table.values[-1], theirs.vectors[row, "abs_max"], rtol=1e-6)
    assert ("units of output/body.1", "mean") in run.tensors()


def test_what_a_view_writes_is_the_same_again(tmp_path):
    run = fit(tmp_path, StatsMonitor([Watch(params="*", tensors=["grad", "update"]), Watch(modules="*", stats=["p99"])]))
    for view in run.views():
        entry = EntryLayout(view.rows, view.due).fill(view)
        for tag, value in entry.scalars.items():
            steps, values = run.scalars[f"watch/{tag}"]
            assert value == pytest.approx(values[steps.tolist().index(view.step)], rel=1e-6), tag


def test_tables_and_scalars_of_a_run_agree_and_any_statistic_can_be_read(tmp_path):
    run = fit(tmp_path, StatsMonitor([Watch(params="*", tensors=["grad", "update"], stats=["norm", "ratio"])]))
    assert run.tensors() == [
        *((t, s) for t in ("grad", "update") for s in (*(("norm",) if t == "grad" else ("norm", "ratio")), "count")),
        ("loss", "mean"),
        ("loss", "count"),
    ]
    for tensor, stat in [("grad", "norm"), ("update", "ratio")]:
        table = run.table(tensor, stat)
        for name in table.names:
            np.testing.assert_allclose(table[name], run.scalars[f"watch/{tensor}_{stat}/{name}"][1], rtol=1e-6)
    assert run.table("grad", "std").values.shape == run.table("grad", "norm").values.shape  # no rule asked for it
    with pytest.raises(RuleError, match="no table 'grad nrom'"):
        run.table("grad", "nrom")


def test_several_monitors_with_one_prefix_have_views_of_their_own(tmp_path):
    keeps = [Keeps(), Keeps()]
    rules = [[Watch(params="*", tensors="grad", stats="norm")], [Watch(modules="*", tensors="output", stats="mean")]]
    monitors = [StatsMonitor(watch, consumers=[keep]) for watch, keep in zip(rules, keeps, strict=True)]
    logger = TensorBoardLogger(tmp_path, name="", version="run")
    trainer_of(tmp_path, *monitors, logger=logger, max_steps=2).fit(Net(), data())
    run = read_run(tmp_path / "run")
    assert [(each.prefix, each.number) for each in run.monitors()] == [("", 0), ("", 1)] and run.monitors("test") == []
    for number, keep in enumerate(keeps):
        assert run.monitors()[number].rows.tensors == keep.views[0].rows.tensors
        read = [*run.views(monitor=number)]
        assert [view.rows.tensors for view in read] == [view.rows.tensors for view in keep.views]
        for tensor in dict.fromkeys(keep.views[0].rows.tensors):
            np.testing.assert_allclose(
                read[-1].stat(tensor, "norm").values, keep.views[-1].stat(tensor, "norm").values, rtol=1e-6
            )
    with pytest.raises(RuleError, match="has no step views of monitor 2, stage 'train' and prefix ''; there are stage 'train'"):
        run.views(monitor=2)


def test_a_run_without_step_views_says_so(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        StepEventWriter(writer).write(LogEntry(0, summaries={"run/grad_norm": 1.0}))
    with pytest.raises(RuleError, match="there are none: it was written by an older version, or ended before"):
        read_run(tmp_path).views()
    assert read_run(tmp_path).monitors() == []


@pytest.mark.filterwarnings("ignore:.* scalars are more than max_scalars")
@pytest.mark.parametrize(("magnitudes", "most"), [(False, 28), (True, 36)])
def test_a_row_takes_few_bytes_of_the_table_at_a_step(tmp_path, magnitudes, most):
    stats = ["mean", "std", "norm", "abs_max", "zero_fraction", "nonfinite", *(["abs_mean"] if magnitudes else [])]
    wide = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(400)))

    class Wide(ValNet):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(6, 2), wide, torch.nn.Linear(2, 3))

    sizes = []
    for steps in (2, 7):
        rule = Watch(params="*", tensors=["grad", "param"], stats=stats)
        fit(tmp_path / str(steps), StatsMonitor([rule], max_scalars=0), Wide(), steps)
        (file,) = (tmp_path / str(steps) / "run").glob("*tfevents*")
        sizes.append(file.stat().st_size)
    rows = 2 * 804
    each = (sizes[1] - sizes[0]) / 5 / rows
    assert each <= most + 1 and math.isclose(each, most, rel_tol=0.05)
