"""Nothing asked, nothing written: a fit without a logger leaves the current folder empty, and tells in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from lightning_hooks import FlightRecorder, HealthMonitor, StatsMonitor, instrument
from tests.callbacks.models import data, trainer_of
from tests.callbacks.test_health import Forgotten, rules_of

SETS: dict[str, Callable[[], list[Callback]]] = {
    "alone": lambda: [HealthMonitor()],
    "silent": lambda: [HealthMonitor(loggers=[])],
    "beside": lambda: [StatsMonitor(loggers=[]), HealthMonitor(), FlightRecorder()],
    "first batch": lambda: [HealthMonitor(check_first_batch=True)],
}


@pytest.fixture(autouse=True)
def current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("which", SETS)
def test_a_fit_without_a_logger_leaves_no_file(current: Path, capsys: pytest.CaptureFixture[str], which: str) -> None:
    callbacks = SETS[which]()
    trainer_of(current, *callbacks, default_root_dir=None).fit(Forgotten(), data(10))
    assert [*current.iterdir()] == []
    (monitor,) = (each for each in callbacks if isinstance(each, HealthMonitor))
    assert "NotInOptimizer" in rules_of(monitor)
    said = capsys.readouterr()
    assert "Not healthy" in said.out + said.err


def test_a_folder_that_is_given_is_used(current: Path) -> None:
    trainer_of(current / "asked", HealthMonitor()).fit(Forgotten(), data(10))
    assert [path.name for path in current.iterdir()] == ["asked"]
    assert {path.name for path in (current / "asked").iterdir()} == {"findings.jsonl", "summary.json"}


def test_a_plain_loop_without_a_folder_leaves_no_file(current: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with instrument(model, [StatsMonitor(), HealthMonitor(), FlightRecorder()], optimizer=optimizer):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
    assert [*current.iterdir()] == []
