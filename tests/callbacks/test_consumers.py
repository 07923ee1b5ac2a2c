"""Consumers of a user's own in real fits: what they are given, when, and what becomes of their errors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from lightning_hooks import Apply, GradientTransforms, RuleError, StatsMonitor, StepConsumer, StepView, Watch
from lightning_hooks.transforms import Scale
from tests.callbacks.models import Memory, Net, ValNet, assert_clean, data, everything, trainer_of

OUTPUT = [Watch(modules="body.0", tensors="output", stats="mean")]


class Notes(StepConsumer):
    """Notes what it is given; fails at a step."""

    def __init__(self, fails_at: int | None = None, log: list[Any] | None = None) -> None:
        self.log: list[Any] = [] if log is None else log
        self.views: list[StepView] = []
        self.fails_at = fails_at

    def start(self, rows: Any, run: Any) -> None:
        self.log.append("start")

    def consume(self, view: StepView) -> None:
        self.log.append((view.stage, view.step))
        self.views.append(view)
        if view.step == self.fails_at:
            raise ZeroDivisionError("in a consumer")

    def close(self, error: BaseException | None) -> None:
        self.log.append(error)


def test_every_step_of_every_stage_in_order(tmp_path: Path) -> None:
    notes = Notes()
    monitor = StatsMonitor(everything(), stages=["train", "validate"], every_n_steps=2, max_scalars=2000, consumers=[notes])
    memory = Memory()
    trainer_of(tmp_path, monitor, logger=memory, val_check_interval=3).fit(ValNet(), data(), data(2))
    train = [("train", step) for step in (1, 3, 5)]
    assert notes.log == ["start", train[0], ("validate", 2), *train[1:], ("validate", 5), None]
    # What the loggers get is in the view.
    for view, (step, logged) in zip(notes.views, memory.ours, strict=True):
        prefix = "val_" if view.stage == "validate" else ""
        series = view.stat("output", "norm")
        for name, value in zip(series.names, series.values, strict=True):
            assert logged[f"{prefix}output_norm/{name}"] == pytest.approx(value, rel=1e-12)
        assert view.step == step and {prefix + tag for tag in view.summaries} <= set(logged)
    trained = [view for view in notes.views if view.stage == "train"]
    assert all(view.rows is trained[0].rows for view in trained) and trained[0].wall_time < trained[1].wall_time


def test_a_view_comes_when_its_step_ends_after_the_loggers_and_latest(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Looks(Notes):
        def consume(self, view: StepView) -> None:
            super().consume(view)
            seen.append((memory.steps[-1], monitor.latest["output_mean/body.0"] == view.stat("output", "mean").values[0]))

    class Ends(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(f"batch {batch_idx}")

    memory, monitor = Memory(), StatsMonitor(OUTPUT, consumers=[Looks()])
    trainer_of(tmp_path, monitor, Ends(), logger=memory).fit(Net(), data(3))
    assert seen == [(0, True), "batch 0", (1, True), "batch 1", (2, True), "batch 2"]


def test_each_fit_starts_and_closes_it(tmp_path: Path) -> None:
    notes = Notes()
    monitor = StatsMonitor(OUTPUT, consumers=[notes], stages=["train", "test"])
    for _ in range(2):
        trainer_of(tmp_path, monitor).fit(Net(), data(1))
    assert notes.log == ["start", ("train", 0), None] * 2


def test_it_is_not_closed_where_an_error_came_before_its_start(tmp_path: Path) -> None:
    notes = Notes()
    with pytest.raises(RuleError, match="two StatsMonitors would write"):
        trainer_of(tmp_path, StatsMonitor(OUTPUT), StatsMonitor(OUTPUT, consumers=[notes])).fit(Net(), data(1))
    assert notes.log == []


@pytest.mark.parametrize("error", [RuntimeError("in training"), KeyboardInterrupt()], ids=repr)
def test_it_is_told_what_ended_the_run(tmp_path: Path, error: BaseException) -> None:
    class Breaks(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if batch_idx == 2:
                raise error
            return super().training_step(batch, batch_idx)

    notes = Notes()
    with pytest.raises((RuntimeError, KeyboardInterrupt, SystemExit)):
        trainer_of(tmp_path, StatsMonitor(OUTPUT, consumers=[notes])).fit(Breaks(), data())
    assert notes.log == ["start", ("train", 0), ("train", 1), error]


def test_its_error_ends_the_fit_and_the_others_have_the_view(tmp_path: Path) -> None:
    broken, other = Notes(fails_at=2), Notes()
    model, memory = Net(), Memory()
    with pytest.raises(ZeroDivisionError, match="in a consumer"):
        trainer_of(tmp_path, StatsMonitor(OUTPUT, consumers=[broken, other]), logger=memory).fit(model, data())
    assert [view.step for view in other.views] == memory.steps == [0, 1, 2]
    assert isinstance(broken.log[-1], ZeroDivisionError) and isinstance(other.log[-1], ZeroDivisionError)
    assert_clean(model)


def test_with_warn_its_error_ends_the_monitor_and_training_goes_on(tmp_path: Path) -> None:
    broken, other, model = Notes(fails_at=2), Notes(), Net()
    monitor = StatsMonitor(OUTPUT, consumers=[broken, other], on_error="warn")
    trainer = trainer_of(tmp_path, monitor)
    with pytest.warns(UserWarning, match="stopped watching after ZeroDivisionError: in a consumer; training continues"):
        trainer.fit(model, data())
    assert trainer.global_step == 6 and [view.step for view in other.views] == [0, 1, 2] and other.log[-1] is None
    assert_clean(model)


def test_reports_of_transforms_are_in_the_view(tmp_path: Path) -> None:
    notes = Notes()
    transforms = GradientTransforms([Apply(Scale(0.5), params="body.0.weight")])
    trainer_of(tmp_path, transforms, StatsMonitor(OUTPUT, consumers=[notes])).fit(Net(), data(2))
    (tag,) = [tag for tag in notes.views[-1].summaries if tag.startswith("transform_norm_after/")]
    before = notes.views[-1].summaries[tag.replace("after", "before")]
    assert notes.views[-1].summaries[tag] == pytest.approx(before / 2)


def test_a_copy_of_the_monitor_has_consumers_of_its_own(tmp_path: Path) -> None:
    monitor = StatsMonitor(OUTPUT, consumers=[Notes()])
    trainer_of(tmp_path, monitor).fit(Net(), data(2))
    again = pickle.loads(pickle.dumps(monitor))
    assert again.latest == monitor.latest and again.consumers[0] is not monitor.consumers[0]


def test_what_is_no_consumer_is_refused_at_once() -> None:
    with pytest.raises(RuleError, match=r"consumers\[0\] needs the methods start, consume and close"):
        StatsMonitor(consumers=[print])  # type: ignore[list-item]
    assert "consumers=[" in repr(StatsMonitor(consumers=[Notes()]))
