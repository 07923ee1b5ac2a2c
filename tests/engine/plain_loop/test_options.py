"""Options of callbacks do in a plain loop what they do in a Trainer: `on_error`, `max_overhead`, captures, `every_n_steps`."""

from pathlib import Path

import pytest
import torch
from torch import nn

from lightning_hooks import (
    ActivationCapture,
    FlightRecorder,
    RuleError,
    StatsMonitor,
    StepConsumer,
    Watch,
    assert_no_hooks,
    instrument,
    load_capture,
)

NORMS = [Watch(params="*", tensors="grad", stats="norm")]


def train(*callbacks, steps=6, model=None, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU()) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with instrument(model, callbacks, optimizer=optimizer, **options) as watched:
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.full((4, 3), step + 1.0)).sum().backward()
            optimizer.step()
    assert_no_hooks(model)
    return watched


class Steps(StepConsumer):
    def __init__(self, fails_at=None):
        self.steps, self.fails_at = [], fails_at

    def consume(self, view):
        if view.step == self.fails_at:
            raise OSError("no space")
        self.steps.append(view.step)


def test_a_monitor_that_fails_stops_alone_and_the_loop_goes_on():
    failing = StatsMonitor(NORMS, on_error="warn", consumers=[Steps(2)])
    other = StatsMonitor(prefix="other/", consumers=[seen := Steps()])
    with pytest.warns(UserWarning, match="^a StatsMonitor stopped watching after OSError: no space"):
        watched = train(failing, other)
    assert watched.next_step == 6 and seen.steps == [0, 1, 2, 3, 4, 5]
    with pytest.raises(OSError, match="no space"):
        train(StatsMonitor(NORMS, consumers=[Steps(2)]))


def test_rows_that_are_merged_are_told(tmp_path):
    with pytest.warns(UserWarning, match="max_scalars"):
        train(StatsMonitor(max_scalars=3), logdir=tmp_path)


def test_steps_are_counted_as_in_a_fit():
    seen, at = Steps(), Steps()
    second = StatsMonitor(NORMS, every_n_steps=[3], prefix="at/", consumers=[at])
    train(StatsMonitor(NORMS, every_n_steps=2, consumers=[seen]), second)
    assert seen.steps == [1, 3, 5] and at.steps == [3]
    train(StatsMonitor(NORMS, every_n_steps=2, consumers=[later := Steps()]), first_step=9)
    assert later.steps == [9, 11, 13]


def test_the_overhead_is_logged_and_limited():
    monitor = StatsMonitor(max_overhead=1e-6)
    with pytest.warns(UserWarning, match="^watching takes a larger share of a step than max_overhead=1e-06"):
        train(monitor, steps=200)
    assert monitor.latest["run/overhead"] > 0


def test_each_captured_step_is_a_batch_of_the_files(tmp_path):
    pytest.importorskip("safetensors")
    train(ActivationCapture("1", every_n_steps=2), folder=tmp_path)
    entries = load_capture(tmp_path / "captures")["1"]
    assert entries.steps == entries.batch_indices == (1, 3, 5) and set(entries.stages) == {"train"}
    with pytest.raises(RuleError, match="^ActivationCapture: folder: the loop has no folder"):
        train(ActivationCapture("1", every_n_steps=1))
    with pytest.raises(RuleError, match="^ActivationCapture: stages: instrument knows one stage, 'train'"):
        train(ActivationCapture("1", stages="predict"), folder=tmp_path)


def test_a_recorder_may_have_a_folder_of_its_own(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    with torch.no_grad():
        model[0].bias[0] = float("inf")
    train(recorder := FlightRecorder(logdir=tmp_path / "own"), steps=1, model=model, folder=tmp_path / "common")
    assert recorder.record is not None and recorder.folder == tmp_path / "own" / "flight_record"
    assert not (tmp_path / "common").exists()
