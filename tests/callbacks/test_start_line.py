"""The line that a monitor logs when a fit begins."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_hooks import HealthMonitor, StatsMonitor, Watch
from tests.callbacks.models import Net, ValNet, data, trainer_of

WATCHED = "StatsMonitor watches 4 modules and 4 parameters at every step"


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "Monitor watches" in record.getMessage()]


def fit(folder: Path, caplog: pytest.LogCaptureFixture, *callbacks: Any, **options: Any) -> list[str]:
    """The lines of a fit of a network with four layers, two of which have a weight and a bias."""
    with caplog.at_level(logging.INFO):
        trainer_of(folder, *callbacks, **options).fit(Net(), data())
    return lines_of(caplog)


def test_a_fit_logs_what_is_watched_and_how_to_see_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    board = TensorBoardLogger(tmp_path, name="my runs")
    (line,) = fit(tmp_path, caplog, StatsMonitor(prefix="w/"), logger=board, max_epochs=2)
    seen = f"'{board.log_dir}'"
    assert line == f"{WATCHED}. To see it: lightning-hooks view {seen}"


@pytest.mark.parametrize("kind", ["csv", "own", "none"])
def test_without_a_tensorboard_of_the_trainer(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    logdir = tmp_path / "runs" if kind == "own" else None
    logger = CSVLogger(tmp_path) if kind == "csv" else False
    (line,) = fit(tmp_path, caplog, StatsMonitor(logdir=logdir, prefix="w/"), logger=logger)
    ends = {
        "csv": f". To see it: lightning-hooks view {tmp_path / 'lightning_logs' / 'version_0'}",
        "own": f". To see it: lightning-hooks view {tmp_path / 'runs'}",
        "none": "",
    }
    assert line == f"{WATCHED}{ends[kind]}"


@pytest.mark.parametrize(
    ("watch", "every", "said"),
    [
        ({"params": "body.0.*", "tensors": "grad", "stats": "norm"}, 1, "2 parameters at every step"),
        ({"modules": "body.0", "tensors": "output", "stats": "norm"}, 10, "1 module every 10 steps"),
        ({"modules": "body.0", "tensors": "output", "stats": "norm"}, [1, 3], "1 module at some steps"),
        ({"modules": "body.0", "stats": "norm"}, {"every": 2, "last": 8}, "1 module at some steps"),
    ],
)
def test_counts_and_schedules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, watch: dict[str, Any], every: Any, said: str
) -> None:
    monitor = StatsMonitor([Watch(**watch)], every_n_steps=every, loggers=[])
    assert fit(tmp_path, caplog, monitor) == [f"StatsMonitor watches {said}"]


def test_a_health_monitor_beside_it_adds_to_its_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (line,) = fit(tmp_path, caplog, StatsMonitor(loggers=[]), HealthMonitor())
    assert line == "StatsMonitor watches 4 modules and 4 parameters"


def test_no_other_run_logs_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        monitor = StatsMonitor([Watch(modules="*", tensors="output")], stages=["train", "validate"], loggers=[])
        trainer_of(tmp_path, monitor).validate(ValNet(), data(), verbose=False)
        trainer_of(tmp_path, StatsMonitor(), fast_dev_run=True).fit(Net(), data())
    assert lines_of(caplog) == []


def test_the_line_is_silenced_as_those_of_lightning_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        assert fit(tmp_path, caplog, StatsMonitor(loggers=[])) == []
    finally:
        logger.setLevel(level)
