"""Findings reach the alerts of loggers that have such, once each; a service out of reach is one warning."""

import sys
import types

import pytest

from lightning_hooks import HealthMonitor, StatsMonitor
from tests.callbacks.models import data, trainer_of
from tests.callbacks.test_fit_report import Fake, MLFlowLogger, TrackioLogger, WandbLogger
from tests.callbacks.test_health import Forgotten

TITLE = "WARNING: ParametersForgotten (certain)"


def fit(folder, *loggers):
    trainer_of(folder, StatsMonitor(report=False), HealthMonitor(), logger=[*loggers]).fit(Forgotten(), data(10))


def test_loggers_with_alerts_get_each_finding_once(tmp_path, monkeypatch):
    told = []
    trackio = types.SimpleNamespace(
        AlertLevel=types.SimpleNamespace(WARN="warn", ERROR="error"), alert=lambda **given: told.append(given)
    )
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    wandb, mlflow, other = WandbLogger(), MLFlowLogger(), Fake()
    wandb.experiment = types.SimpleNamespace(alert=lambda **given: wandb.taken.append(given))
    mlflow.experiment = types.SimpleNamespace(set_tag=lambda *given: mlflow.taken.append(given))
    fit(tmp_path, wandb, mlflow, TrackioLogger(), other)
    (alert,) = wandb.taken
    assert (alert["title"], alert["level"]) == (TITLE, "WARN") and "no optimizer holds this parameter" in alert["text"]
    assert alert["text"].startswith("The optimizer and the model do not hold the same parameters")
    assert told == [{**alert, "level": "warn"}]
    ((run, name, text),) = mlflow.taken
    assert (run, name) == ("run-7", "lightning_hooks.finding.1") and text.startswith(f"{TITLE}\n") and len(text) <= 500
    assert other.taken == []


def test_a_service_out_of_reach_is_one_warning(tmp_path):
    def fails(**given):
        raise ConnectionError("no route")

    wandb = WandbLogger()
    wandb.experiment = types.SimpleNamespace(alert=fails)
    with pytest.warns(UserWarning, match="WandbLogger did not take an alert, and gets no more: ConnectionError: no route"):
        fit(tmp_path, wandb)
