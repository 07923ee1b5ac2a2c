"""The trail of a `HealthMonitor`: the message about a NaN names the layer, in a fit and in a plain loop, without a recorder."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks import FlightRecorder, HealthMonitor, StatsMonitor, instrument
from lightning_hooks.recorder.files import read_record
from lightning_hooks.recorder.record import Verdict
from tests.callbacks.test_recorder import BAD_STEP, Blocks, Net, fit, made, record_late

MESSAGE = (
    "In the forward pass of step 5, the output of log_of (Log) is the first that is not finite. log_of made it, or code "
    "between the calls of body.2 and log_of, such as the forward of the model."
)


def causes_of(monitor: HealthMonitor) -> list[tuple[str, str]]:
    return [(cause.name, cause.message) for cause in monitor.causes]


@pytest.mark.parametrize("others", [(), (StatsMonitor,)], ids=["alone", "beside a StatsMonitor"])
def test_the_layer_is_named_in_one_message(others: Any, tmp_path: Any, capsys: Any) -> None:
    monitor = HealthMonitor()
    fit(made(), *(each() for each in others), monitor, folder=tmp_path)
    assert causes_of(monitor) == [("NumericalRange", MESSAGE)]
    assert monitor.record is not None and monitor.record.verdict is Verdict.FORWARD
    folder = tmp_path / "flight_record"
    assert read_record(folder) == monitor.record and {each.name for each in folder.iterdir()} == {"record.json", "record.md"}
    assert monitor.causes[0].next_steps[-2:] == (
        f"Read {folder / 'record.md'}: the calls before it.",
        "Add FlightRecorder() to the callbacks and train again: it keeps the batch for `lightning-hooks replay`, and on a CPU "
        "it names the operation.",
    )
    shown = " ".join(capsys.readouterr().err.split())
    assert shown.count("log_of (Log) is the first that is not finite") == 1 and shown.count("NumericalRange (likely)") == 1


def test_on_a_device_the_layer_is_named_too(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record_late(monkeypatch)
    monitor = HealthMonitor()
    fit(Blocks(), StatsMonitor(), monitor, folder=tmp_path)
    assert monitor.record is not None and monitor.record.place is not None and monitor.record.place.module == "cell"
    assert any("the output of cell (Linear) is the first that is not finite" in message for _, message in causes_of(monitor))


def test_a_flight_recorder_takes_over(tmp_path: Any) -> None:
    monitor, recorder = HealthMonitor(), FlightRecorder()
    fit(made(), monitor, recorder, folder=tmp_path)
    assert monitor.record is None and recorder.record is not None
    assert [cause.name for cause in monitor.causes] == ["FirstBadNumberForward"]


def test_a_fit_with_a_flight_recorder_forgets_the_record_of_the_fit_before(tmp_path: Any) -> None:
    monitor = HealthMonitor()
    fit(made(), monitor, folder=tmp_path)
    assert monitor.record is not None
    fit(made(is_sick=False), monitor, FlightRecorder(), folder=tmp_path)
    assert monitor.record is None


def test_nothing_is_noted_for_a_rule_that_is_off(tmp_path: Any) -> None:
    monitor = HealthMonitor({"NonFinite": False})
    fit(made(), monitor, folder=tmp_path)
    assert monitor.record is None and not (tmp_path / "flight_record").exists()


def test_nothing_is_written_where_no_file_is(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monitor = HealthMonitor()
    fit(made(), monitor, folder=None)
    assert monitor.record is not None and causes_of(monitor) == [("NumericalRange", MESSAGE)]
    assert not [*tmp_path.iterdir()]


def test_an_exception_leaves_no_record(tmp_path: Any) -> None:
    monitor = HealthMonitor()
    with pytest.raises(RuntimeError, match="out of luck"):
        fit(made(is_sick=False, raises=RuntimeError("out of luck")), monitor, folder=tmp_path)
    assert monitor.record is None and not (tmp_path / "flight_record").exists()


class Diverges(Net):
    """Its learning rate is far too large, so that the loss grows until it is infinite."""

    def __init__(self) -> None:
        super().__init__(is_sick=False)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=50.0)


def test_a_divergence_keeps_its_cause_and_ends_with_the_layer(tmp_path: Any) -> None:
    monitor = HealthMonitor()
    torch.manual_seed(1)
    fit(Diverges(), StatsMonitor(), monitor, folder=tmp_path, steps=30)
    told = [message for name, message in causes_of(monitor) if name == "LearningRateTooHigh"]
    assert len(told) == 1 and monitor.record is not None and told[0].endswith(monitor.record.message)
    assert not any(name.startswith("FirstBadNumber") for name, _ in causes_of(monitor))


@pytest.mark.parametrize("recorder", [None, FlightRecorder], ids=["alone", "beside a FlightRecorder"])
def test_a_plain_loop_names_the_layer_in_one_message(recorder: Any, tmp_path: Any, capsys: Any) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    monitor = HealthMonitor()
    callbacks = [StatsMonitor(), monitor, *([] if recorder is None else [recorder()])]
    with instrument(model, callbacks, optimizer=optimizer, logdir=tmp_path):
        for step in range(8):
            optimizer.zero_grad()
            hidden = model[1](model[0](torch.randn(8, 4)))
            model[2](hidden.log() if step >= BAD_STEP else hidden).pow(2).mean().backward()
            optimizer.step()
    (cause,) = monitor.causes
    assert cause.name == ("NumericalRange" if recorder is None else "FirstBadNumberForward")
    assert cause.message.startswith("In the forward pass of step 5, the output of 2 (Linear) is the first that is not finite")
    assert capsys.readouterr().err.count(f"{cause.name} (") == 1
    (record,) = tmp_path.rglob("record.json")
    assert json.loads(record.read_text())["verdict"] == "forward"
