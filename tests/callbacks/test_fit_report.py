"""`StatsMonitor(report=…)` leaves the page of the fit as a file, and passes it to the loggers that keep files."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from lightning_hooks import HealthMonitor, RuleError, StatsMonitor
from tests.callbacks.models import trainer_of


class Fake(Logger):
    """A logger with the public calls of the original; each notes the file that it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Any] = []
        self.experiment: Any = types.SimpleNamespace(log_artifact=lambda *args, **kwargs: self.taken.append((args, kwargs)))

    name = version = property(lambda self: "fake")  # type: ignore[assignment]

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

    def log_metrics(self, *args: Any, **kwargs: Any) -> None: ...


class WandbLogger(Fake): ...


class MLFlowLogger(Fake):
    run_id = "run-7"


class NeptuneLogger(Fake):
    def __init__(self) -> None:
        super().__init__()
        upload = types.SimpleNamespace(upload=lambda path: self.taken.append(path))
        self.experiment = {"lightning_hooks/report": upload}


class TrackioLogger(Fake): ...


def fit(root: Path, *callbacks: Any, logger: Any = False, **options: Any) -> None:
    trainer_of(root, *callbacks, logger=logger, limit_train_batches=4, limit_val_batches=0, **options).fit(BoringModel())


def test_the_report_is_that_of_the_event_file_of_the_package(tmp_path: Path) -> None:
    out = tmp_path / "made" / "report.html"
    fit(tmp_path, StatsMonitor(logdir=tmp_path / "runs", report=out), HealthMonitor())
    assert "<title" in out.read_text(encoding="utf-8") and out.stat().st_size > 10_000
    assert len(list((tmp_path / "runs").rglob("events.out.tfevents.*"))) == 1, "the report opens no second file"


def test_the_report_is_that_of_a_tensorboard_logger(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    fit(tmp_path, StatsMonitor(report=out), logger=TensorBoardLogger(tmp_path / "logs"))
    assert out.stat().st_size > 10_000


def test_loggers_that_keep_files_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[str] = []
    monkeypatch.setitem(sys.modules, "trackio", types.SimpleNamespace(save=saved.append))
    out = tmp_path / "report.html"
    loggers = [WandbLogger(), MLFlowLogger(), NeptuneLogger(), TrackioLogger(), Fake()]
    fit(tmp_path, StatsMonitor(logdir=tmp_path / "runs", report=out), logger=loggers)
    wandb, mlflow, neptune, _, other = (each.taken for each in loggers)
    assert wandb == [((str(out),), {"name": "lightning_hooks_report", "type": "report"})]
    assert mlflow == [(("run-7", str(out)), {})]
    assert neptune == saved == [str(out)]
    assert other == []


def test_without_being_asked_the_loggers_that_keep_files_get_the_report_beside_the_event_file(tmp_path: Path) -> None:
    """Only the first of two monitors leaves one."""
    loggers = [WandbLogger(), Fake()]
    fit(tmp_path, StatsMonitor(), StatsMonitor(prefix="other/"), logger=loggers)
    (out,) = tmp_path.rglob("report.html")
    assert [*out.parent.glob("events.out.tfevents.*")] and out.stat().st_size > 10_000
    assert loggers[0].taken == [((str(out),), {"name": "lightning_hooks_report", "type": "report"})] and not loggers[1].taken


@pytest.mark.parametrize(
    ("monitor", "logger"),
    [
        (lambda: StatsMonitor(report=False), WandbLogger),
        (lambda: StatsMonitor(loggers=[]), WandbLogger),
        (lambda: StatsMonitor(), Fake),
    ],
    ids=["switched off", "no logger is written to", "a logger without files"],
)
def test_without_being_asked_no_other_fit_leaves_a_report(
    tmp_path: Path, monitor: Callable[[], StatsMonitor], logger: type[Fake]
) -> None:
    made = logger()
    fit(tmp_path, monitor(), logger=made)
    assert made.taken == [] and not [*tmp_path.rglob("report.html")]


def test_true_is_a_report_beside_the_event_file(tmp_path: Path) -> None:
    fit(tmp_path, StatsMonitor(logdir=tmp_path / "runs", report=True))
    (out,) = tmp_path.rglob("report.html")
    assert out.parent.parent == tmp_path / "runs"


def test_a_logger_that_fails_is_a_warning(tmp_path: Path) -> None:
    logger = WandbLogger()
    logger.experiment = None
    with pytest.warns(UserWarning, match="WandbLogger did not take .*report.html: AttributeError"):
        fit(tmp_path, StatsMonitor(logdir=tmp_path / "runs", report=tmp_path / "report.html"), logger=logger)


def test_without_an_event_file_it_says_what_to_do(tmp_path: Path) -> None:
    said = r"report='report.html' is made of an event file, and no chosen logger .* give StatsMonitor\(logdir='…'\) a folder"
    with pytest.raises(RuleError, match=said):
        fit(tmp_path, StatsMonitor(report="report.html"))


def test_a_fit_that_fails_leaves_no_report(tmp_path: Path) -> None:
    class Fails(BoringModel):
        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
            raise KeyError("batch")

    monitor = StatsMonitor(logdir=tmp_path / "runs", report=tmp_path / "report.html")
    with pytest.raises(KeyError):
        trainer_of(tmp_path, monitor, limit_val_batches=0).fit(Fails())
    assert not (tmp_path / "report.html").exists()
