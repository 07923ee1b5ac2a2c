"""All callbacks of a Trainer fill one table for each stage, in which no tensor has two rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lightning_hooks import Apply, FlightRecorder, GradientTransforms, HealthMonitor, StatsMonitor, Watch, instrument
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.transforms import ClipByGlobalNorm
from tests.callbacks.models import Net, ValNet, data, trainer_of

OWN = [
    Watch(modules="body.*", tensors=["input", "output"], stats="std"),
    Watch(params="*.weight", tensors="grad", stats="norm"),
]


@pytest.fixture
def observers(monkeypatch: pytest.MonkeyPatch) -> list[Observer]:
    made: list[Observer] = []
    begin = Observer.__init__

    def note(self: Observer, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(Observer, "__init__", note)
    return made


def rows_of(observer: Observer) -> Counter[tuple[str, str]]:
    return Counter((row.tensor, row.name) for row in observer.plan.rows)


def test_a_monitor_health_rules_and_a_recorder_measure_each_tensor_once(tmp_path: Path, observers: list[Observer]) -> None:
    callbacks = [StatsMonitor(OWN, loggers=[]), HealthMonitor(loggers=[]), FlightRecorder(logdir=tmp_path)]
    trainer_of(tmp_path, *callbacks).fit(Net(), data(3))
    (observer,) = observers
    rows = rows_of(observer)
    assert set(rows.values()) == {1}
    of_owners = [{(row.tensor, row.name) for row in share.plan.rows} for share in observer.shares]
    assert len(of_owners) == 3 and set(rows) == set().union(*of_owners)
    assert len(rows) < sum(map(len, of_owners))


def test_each_stage_has_a_table(tmp_path: Path, observers: list[Observer]) -> None:
    monitors = [StatsMonitor(prefix=prefix, stages=["train", "validate"], loggers=[]) for prefix in ("a/", "b/")]
    trainer_of(tmp_path, *monitors).fit(ValNet(), data(3), data(2))
    assert sorted(observer.stage for observer in observers) == ["train", "validate"]
    assert all(set(rows_of(observer).values()) == {1} for observer in observers)


def test_of_a_gradient_there_is_a_row_for_each_side_of_a_clip(tmp_path: Path, observers: list[Observer]) -> None:
    before, after = (StatsMonitor(prefix=prefix, loggers=[]) for prefix in ("before/", "after/"))
    clip = GradientTransforms([Apply(ClipByGlobalNorm(1e-3), params="body.0.weight")])
    trainer_of(tmp_path, before, clip, after).fit(Net(), data(3))
    (observer,) = observers
    assert [key for key, count in rows_of(observer).items() if count == 2] == [("grad", "body.0.weight")]
    assert after.latest["grad_norm/body.0.weight"] < before.latest["grad_norm/body.0.weight"]
    assert after.latest["grad_norm/body.0.bias"] == before.latest["grad_norm/body.0.bias"]


def test_a_plain_loop_has_one_table(observers: list[Observer]) -> None:
    import torch

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with instrument(model, [StatsMonitor(OWN), HealthMonitor(), FlightRecorder()], optimizer=optimizer):
        pass
    (observer,) = observers
    assert set(rows_of(observer).values()) == {1} and len(observer.shares) == 3
