"""In a fit: what quick steps write together is what each would have written, and is there whenever somebody may look."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from lightning_hooks import StatsMonitor, Watch
from lightning_hooks.engine import pending
from lightning_hooks.stats.merged import Merging
from tests.callbacks.models import Net, ValNet, data, everything, trainer_of

OUTPUT = [Watch(modules="body.0", tensors="output", stats=["mean", "max"])]
TAG = "output_mean/body.0"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is quick, however slow the machine."""
    monkeypatch.setattr(pending, "QUICK", 1e9)
    monkeypatch.setattr(pending, "LONGEST", 1e9)
    monkeypatch.setattr(pending, "MOST_BYTES", 1 << 30)


def events(root: Path) -> list[Event]:
    files = sorted(root.rglob("events.out.tfevents.*"))
    return [Event.FromString(raw) for file in files for raw in RawEventFileLoader(str(file)).Load()]


def steps(root: Path, tag: str = TAG) -> list[int]:
    return [event.step for event in events(root) if any(value.tag == tag for value in event.summary.value)]


class Looks(Callback):
    """Notes which steps are in the file at a moment, after the monitor; by default when each batch ends."""

    def __init__(self, root: Path, moment: str = "on_train_batch_end") -> None:
        self.root = root
        self.seen: list[list[int]] = []
        setattr(self, moment, self._look)

    def _look(self, trainer: Any, *args: Any) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.flush()  # where something of the logger waited, its thread writes
        self.seen.append(steps(self.root))


def fit(root: Path, monitor: StatsMonitor, *more: Callback, model: Net | None = None, **options: Any) -> None:
    trainer = trainer_of(root, monitor, *more, logger=options.pop("logger", None) or TensorBoardLogger(root), **options)
    model = model or Net()
    trainer.fit(model, data(), *([data(2)] if isinstance(model, ValNet) else []))


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}], ids=str)
def test_the_events_are_those_of_steps_recorded_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    written, kept = [], []
    keep = Merging.keep
    monkeypatch.setattr(Merging, "keep", lambda merging: (kept.append(merging), keep(merging)))
    for name in ("together", "at once"):
        if name == "at once":
            monkeypatch.setattr(pending, "QUICK", 0.0)
        torch.manual_seed(0)
        fit(tmp_path / name, StatsMonitor(everything(), max_scalars=2000), **options)
        ours = [event for event in events(tmp_path / name) if event.summary.value]
        written.append([(e.step, [v for v in e.summary.value if v.tag != "hooks/overhead"]) for e in ours])
    assert written[0] == written[1] and len(written[0]) > 3
    assert len(kept) == 6 // options.get("accumulate_grad_batches", 1) - 1


def test_steps_wait_for_others_and_nothing_is_lost_at_the_end(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    fit(tmp_path, StatsMonitor(OUTPUT), looks)
    assert looks.seen == [[0]] * 6
    assert steps(tmp_path) == list(range(6))


def test_an_event_bears_the_time_at_which_its_step_ended(tmp_path: Path) -> None:
    ends: list[float] = []

    class Clock(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            ends.append(time.time())
            time.sleep(0.01)

    fit(tmp_path, StatsMonitor(OUTPUT), Clock())
    times = [event.wall_time for event in events(tmp_path) if any(value.tag == TAG for value in event.summary.value)]
    assert all(written <= end < later for written, end, later in zip(times, ends, times[1:], strict=False))


def test_a_step_that_is_not_watched_lets_them_out(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    fit(tmp_path, StatsMonitor(OUTPUT, every_n_steps=[0, 1, 2, 4]), looks)
    assert looks.seen == [[0], [0], [0], [0, 1, 2], [0, 1, 2, 4], [0, 1, 2, 4]]


def test_what_was_trained_before_a_validation_is_written_before_it(tmp_path: Path) -> None:
    looks = Looks(tmp_path, "on_validation_epoch_start")
    fit(tmp_path, StatsMonitor(OUTPUT), looks, model=ValNet(), val_check_interval=3)
    assert looks.seen == [[0, 1, 2], list(range(6))]


def test_an_epoch_that_ends_lets_them_out(tmp_path: Path) -> None:
    looks = Looks(tmp_path, "on_train_epoch_start")
    fit(tmp_path, StatsMonitor(OUTPUT), looks, max_epochs=2)
    assert looks.seen == [[], list(range(6))]


def test_an_exception_loses_none(tmp_path: Path) -> None:
    class Breaks(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if batch_idx == 3:
                raise ZeroDivisionError("in training")
            return super().training_step(batch, batch_idx)

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, StatsMonitor(OUTPUT), model=Breaks())
    assert steps(tmp_path) == [0, 1, 2]


def test_latest_is_that_of_the_last_step(tmp_path: Path) -> None:
    monitor, latest = StatsMonitor(OUTPUT), []

    class Asks(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            latest.append(monitor.latest[TAG])

    fit(tmp_path, monitor, Asks())
    written = [value.simple_value for event in events(tmp_path) for value in event.summary.value if value.tag == TAG]
    assert latest == pytest.approx(written, rel=1e-6) and len(set(latest)) == 6


def test_another_logger_hears_of_each_step_when_it_ends(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    fit(tmp_path, StatsMonitor(OUTPUT), looks, logger=[TensorBoardLogger(tmp_path), CSVLogger(tmp_path)])
    assert looks.seen == [list(range(n)) for n in range(1, 7)]


def test_a_users_metric_is_read_when_its_step_ends(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    rule = Watch(modules="body.0", tensors="output", stats=["mean", "torchmetrics.MeanMetric"])
    fit(tmp_path, StatsMonitor([rule]), looks)
    assert looks.seen == [list(range(n)) for n in range(1, 7)]
