"""Tags of this package stay below `watch/`, so that charts of the user are not buried; tables and views have plain names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_hooks import Apply, GradientTransforms, HealthMonitor, RuleError, StatsMonitor, Watch, read_run
from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.overview import overview
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.saved_index import SavedIndex
from lightning_hooks.transforms import Scale
from tests.callbacks.models import Net, ValNet, data, trainer_of

RULES = [Watch(params="*", tensors=["grad", "param"], stats=["norm", "histogram"])]


def fit(folder: Path, *callbacks: Any, **options: Any) -> Any:
    """The run of a fit with a TensorBoard and a CSV logger, whose module logs `loss`."""
    board = TensorBoardLogger(folder, name="board", version="")
    loggers = [board, CSVLogger(folder, name="csv", version="")]
    trainer_of(folder, *callbacks, logger=loggers, **options).fit(Net(log=True), data())
    return read_run(board.log_dir)


@pytest.mark.parametrize(
    ("prefix", "start"), [(None, "watch/"), ("watch/", "watch/"), ("mine/", "mine/"), ("watch/a/", "watch/a/")]
)
def test_every_tag_begins_with_the_prefix(tmp_path: Path, prefix: str | None, start: str) -> None:
    monitor = StatsMonitor(RULES, **({} if prefix is None else {"prefix": prefix}))
    run = fit(tmp_path, monitor)
    assert {tag for tag in run.scalars if not tag.startswith(start)} == {"loss", "epoch"}
    assert run.histograms and all(
        tag.startswith(f"{start}grad_hist") or tag.startswith(f"{start}param_hist") for tag in run.histograms
    )
    assert {"watch/run/rules".replace("watch/", start)} <= set(run.texts)
    head = (tmp_path / "csv" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {tag for tag in head if not tag.startswith(start)} == {"loss", "epoch", "step"}
    assert f"{start}run/grad_norm" in overview(LocalRun(tmp_path / "board"))["run"]


def test_the_prefix_may_be_empty(tmp_path: Path) -> None:
    run = fit(tmp_path, StatsMonitor(RULES, prefix=""))
    assert {"loss", "run/grad_norm", "grad_norm/body.0.weight"} <= set(run.scalars) and "run/rules" in run.texts


def test_reports_of_transforms_and_findings_are_below_it_too(tmp_path: Path) -> None:
    run = fit(tmp_path, GradientTransforms([Apply(Scale(0.5), params="*")]), HealthMonitor())
    assert {tag.partition("/")[0] for tag in run.scalars} == {"watch", "loss", "epoch"}
    assert "watch/health/transform_acted/0_Scale" in run.scalars and "watch/health/run/loss" in run.scalars
    assert {monitor.prefix for monitor in run.monitors()} == {"health/"}


@pytest.mark.parametrize(
    ("prefix", "name"),
    [("watch/", ""), ("", ""), ("mine/", "mine/"), ("watch/a/", "a/")],
    ids=["default", "none", "own", "below"],
)
def test_tables_views_and_latest_have_none_and_a_monitor_is_found_by_its_own(tmp_path: Path, prefix: str, name: str) -> None:
    monitor = StatsMonitor(RULES, prefix=prefix)
    run = fit(tmp_path, monitor)
    assert ("grad", "norm") in run.tensors() and run.table("grad", "norm").names[0] == "body.0.weight"
    assert {"grad_norm/body.0.weight", "run/grad_norm"} <= monitor.latest.keys()
    for given in (None, name, prefix):
        assert run.table("grad", "norm", given).names[0] == "body.0.weight"
        views = [*run.views(prefix=given)]
        assert [view.summaries["run/grad_norm"] for view in views] == pytest.approx(
            run.scalars[f"{prefix}run/grad_norm"][1].tolist()
        )


def test_the_tables_of_a_second_monitor_are_asked_for_by_its_prefix(tmp_path: Path) -> None:
    own = StatsMonitor([Watch(params="body.0.bias", tensors="grad", stats="norm")], prefix="mine/")
    run = fit(tmp_path, StatsMonitor(RULES), own)
    assert run.table("grad", "norm").names[0] == "body.0.weight" and run.table("grad", "norm", "mine/").names == (
        "body.0.bias",
    )
    assert {tensor for tensor, _ in run.tensors("mine/")} == {"grad", "loss"}
    assert not [tensor for tensor, _ in run.tensors() if "mine" in tensor]
    with pytest.raises(RuleError, match="^no table 'param norm' in "):
        run.table("param", "norm", "mine/")


def test_validation_follows_the_prefix(tmp_path: Path) -> None:
    board = TensorBoardLogger(tmp_path, name="board", version="")
    monitor = StatsMonitor([Watch(modules="body.0", tensors="output", stats="norm")], stages=["train", "validate"])
    trainer_of(tmp_path, monitor, logger=board).fit(ValNet(), data(), data())
    run = read_run(board.log_dir)
    assert {"watch/val_output_norm/body.0", "watch/val_run/nonfinite"} <= set(run.scalars)
    assert run.table("val_output", "norm").names == ("body.0",)
    (view,) = run.views("validate")
    assert view.summaries["run/nonfinite"] == 0


def test_two_monitors_with_one_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="prefix: two StatsMonitors would write 'grad_histogram/body.0.bias'"):
        trainer_of(tmp_path, StatsMonitor(RULES), StatsMonitor(RULES, prefix="")).fit(Net(), data())


def test_an_index_of_an_older_version_has_one_prefix_for_all() -> None:
    index = SavedIndex(RowIndex(["fc.weight"], ["grad"], module_types=["Linear"]), "validate", "", scalars="watch/")
    assert SavedIndex.from_json(index.to_json()).scalar_prefix == "watch/val_"
    old = {key: value for key, value in json.loads(index.to_json()).items() if key != "scalars"}
    read = SavedIndex.from_json(json.dumps({**old, "prefix": "watch/"}))
    assert read.scalar_prefix == read.tag_prefix == "watch/val_"
