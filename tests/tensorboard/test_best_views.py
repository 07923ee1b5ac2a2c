"""Of several monitors, the views of the one that watched most of what is needed are read."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_hooks import RuleError, StatsMonitor, Watch, read_run
from lightning_hooks.tensorboard.best_views import best_views
from lightning_hooks.tensorboard.reading import Run


def train(folder: Path, *monitors: StatsMonitor) -> Path:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        Trainer(
            max_steps=2,
            limit_val_batches=0,
            logger=False,
            accelerator="cpu",
            default_root_dir=folder,
            callbacks=[*monitors],
            **options,
        ).fit(BoringModel())
    return folder / "run_0"


def test_the_monitor_with_most_of_the_tensors_is_read(tmp_path: Path) -> None:
    few = StatsMonitor(watch=[Watch(params="*", tensors="grad")], logdir=tmp_path)
    many = StatsMonitor(
        watch=[Watch(params="*", tensors=["param", "update"]), Watch(modules="*", tensors="output", select="layers")],
        prefix="many/",
        logdir=tmp_path,
    )
    run = read_run(train(tmp_path, few, many))
    assert {*next(best_views(run, ["grad"])).rows.tensors} == {"grad", "loss"}
    assert {*next(best_views(run, ["output", "param", "grad"])).rows.tensors} == {"param", "update", "output", "loss"}
    assert [view.step for view in best_views(run, ["grad"])] == [0, 1]


def test_a_run_without_views_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="has no step views"):
        best_views(Run(tmp_path, scalars={}), ["grad"])
