"""What arrives in W&B, MLflow and trackio themselves, offline, of a fit with a fault. Skipped where a package is missing."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, WandbLogger

from lightning_hooks import HealthMonitor, StatsMonitor
from tests.callbacks.models import data, trainer_of
from tests.callbacks.test_health import Forgotten

TITLE = "WARNING: ParametersForgotten (certain)"
TEXT = "The optimizer and the model do not hold the same parameters"
GLOBAL = {"final_grad_norm", "grad_norm", "loss", "nonfinite", "overhead", "param_norm", "update_ratio"}


def fit(folder: Path, logger: Logger) -> None:
    trainer_of(folder, StatsMonitor(), HealthMonitor(), logger=logger, log_every_n_steps=2).fit(Forgotten(), data(10))


def report_in(folder: Path) -> bytes:
    """The report beside the event file."""
    (report,) = folder.rglob("report.html")
    return report.read_bytes()


def global_numbers(names: Any) -> set[str]:
    """The names of our numbers, each of which is one of the whole run."""
    ours = {name for name in names if name.startswith("watch/")}
    assert {name.removeprefix("watch/run/") for name in ours} <= GLOBAL, ours
    return ours


def records_of(log: bytes) -> bytes:
    """The records of a log of W&B: a header of 7 bytes, then pieces with a header each, none of which crosses 32 KiB."""
    records, at, block = b"", 7, 32768
    while at + 7 <= len(log):
        if block - at % block < 7:
            at += block - at % block
            continue
        end = at + 7 + int.from_bytes(log[at + 4 : at + 6], "little")
        records, at = records + log[at + 7 : end], end
    return records


def test_csv_has_the_numbers_of_the_whole_run_alone(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    fit(tmp_path, logger)
    header, *lines = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert len(global_numbers(header.split(","))) > 4 and lines and not [*tmp_path.rglob("report.html")]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_wandb_has_the_alert_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    fit(tmp_path, WandbLogger(project="p", save_dir=tmp_path))
    wandb.finish()
    wandb.teardown()  # The process of W&B, which writes the file, ends with it.
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = records_of(kept.read_bytes())
    for text in (TITLE, TEXT, "lightning_hooks_report", "report.html", "watch/run/grad_norm"):
        assert text.encode() in content, text
    assert b"watch/grad_norm/" not in content and report_in(tmp_path / "lightning_hooks_logs")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_has_the_tag_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = MLFlowLogger(experiment_name="e", tracking_uri=f"file:{tmp_path / 'mlruns'}")
    fit(tmp_path / "fit", logger)
    run = logger.experiment.get_run(logger.run_id)
    assert len(global_numbers(run.data.metrics)) > 4
    tag = run.data.tags["lightning_hooks.finding.1"]
    assert tag.startswith(f"{TITLE}\n{TEXT}") and len(tag) <= 500
    assert report_in(tmp_path / "mlruns") == report_in(tmp_path / "fit")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_trackio_has_the_alert_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning has no logger for it, so that users write this one."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio", reason="trackio is not installed")

    class TrackioLogger(Logger):
        name = version = property(lambda self: "p")

        def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            trackio.log(dict(metrics), step=step)

    trackio.init(project="p", name="r")
    fit(tmp_path / "fit", TrackioLogger())
    trackio.finish()
    database = sqlite3.connect(tmp_path / "trackio" / "p.db")
    ((title, text, level),) = database.execute("select title, text, level from alerts").fetchall()
    artifacts = database.execute("select name, type from artifacts").fetchall()
    database.close()
    assert (title, level) == (TITLE, "warn") and text.startswith(TEXT)
    assert artifacts == [("lightning_hooks_report", "report")]
    kept = [file.read_bytes() for file in tmp_path.glob("trackio/artifacts/p/blobs/**/*") if file.is_file()]
    assert kept == [report_in(tmp_path / "fit")]
