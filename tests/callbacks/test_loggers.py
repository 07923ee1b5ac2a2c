"""Where a step goes: the loggers of a Trainer, at the steps of `self.log`."""

from __future__ import annotations

import csv
import math
import threading
import warnings
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_hooks import (
    ActivationCapture,
    Apply,
    GradientTransforms,
    HealthMonitor,
    RuleError,
    StatsMonitor,
    StepConsumer,
    Watch,
    read_run,
)
from lightning_hooks.callbacks._loggers import LoggerWriter
from lightning_hooks.records import StepView
from lightning_hooks.rules.prefix import name_of
from lightning_hooks.transforms import Scale
from tests.callbacks.models import Gan, Memory, Net, ValNet, assert_clean, data, everything, trainer_of, watch_fit

NORMS = [Watch(params="*", tensors=["grad", "update"], stats="norm"), Watch(modules="body.*", tensors="output", stats="mean")]


def ours_in(caught: Any) -> list[str]:
    """The warnings that are not Lightning's."""
    theirs = ("many workers", "does not have many", "Checkpoint directory", "number of training batches", "LeafSpec")
    return [str(w.message) for w in caught if not any(part in str(w.message) for part in theirs)]


def tables(directory: str | Path) -> list[tuple[int, list[str]]]:
    """Step and tags of every event that holds the numbers of our table."""
    found = []
    for file in sorted(Path(directory).glob("*tfevents*")):
        for event in LegacyEventFileLoader(str(file)).Load():
            tags = [value.tag for value in event.summary.value]
            if any(tag.startswith("table/") and not tag.startswith(("table/about/", "table/index/")) for tag in tags):
                found.append((event.step, tags))
    return found


@pytest.mark.parametrize("accumulate", [1, 4])
def test_steps_equal_those_of_self_log(tmp_path: Path, accumulate: int) -> None:
    model, monitor = Net(log=True), StatsMonitor(NORMS)
    memory, _ = watch_fit(tmp_path, model, monitor, max_epochs=2, accumulate_grad_batches=accumulate)
    assert memory.steps == memory.steps_of("loss")
    assert memory.steps == list(range(12 if accumulate == 1 else 4))


def test_steps_equal_those_of_self_log_with_two_optimizers(tmp_path: Path) -> None:
    memory, trainer = watch_fit(tmp_path, Gan(log=True), StatsMonitor(), max_epochs=2)
    assert memory.steps == memory.steps_of("loss") == list(range(12))
    assert trainer.global_step == 24


def test_steps_equal_those_of_self_log_where_the_window_changes(tmp_path: Path) -> None:
    memory, model = Memory(), Net(log=True)
    scheduler = GradientAccumulationScheduler({0: 1, 1: 4})
    trainer_of(tmp_path, StatsMonitor(NORMS), scheduler, logger=memory, max_epochs=2).fit(model, data())
    assert memory.steps == memory.steps_of("loss") == list(range(6 + 2))
    assert_clean(model)


def test_steps_equal_those_of_self_log_without_a_known_length(tmp_path: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(data(7))

    loader = DataLoader(Stream(), batch_size=None)
    memory, _ = watch_fit(tmp_path, Net(log=True), StatsMonitor(NORMS), loader, accumulate_grad_batches=3, max_epochs=2)
    assert memory.steps == memory.steps_of("loss") == list(range(6))


def test_an_interval_shares_the_steps_of_lightning(tmp_path: Path) -> None:
    memory, _ = watch_fit(tmp_path, Net(log=True), StatsMonitor(NORMS, every_n_steps=4), data(12), log_every_n_steps=4)
    assert memory.steps == memory.steps_of("loss") == [3, 7, 11]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("every_batch", [True, False], ids=["mid-epoch", "epoch-end"])
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_steps_after_a_resume(tmp_path: Path, accumulate: int, every_batch: bool) -> None:
    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if every_batch and batch_idx == 3 and trainer.current_epoch == 0:
                trainer.save_checkpoint(tmp_path / "last.ckpt")

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if not every_batch:
                trainer.save_checkpoint(tmp_path / "last.ckpt")

    trainer_of(tmp_path, StatsMonitor(NORMS), Save(), accumulate_grad_batches=accumulate).fit(Net(), data())
    memory, model = Memory(), Net(log=True)
    trainer = trainer_of(tmp_path, StatsMonitor(NORMS), logger=memory, max_epochs=2, accumulate_grad_batches=accumulate)
    trainer.fit(model, data(), ckpt_path=tmp_path / "last.ckpt")
    assert memory.steps == memory.steps_of("loss")
    assert memory.steps[0] > 0 and memory.steps[-1] == 12 // accumulate - 1
    assert_clean(model)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_a_resume_inside_a_window_covers_what_is_left(tmp_path: Path) -> None:
    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 0 and trainer.current_epoch == 0:
                trainer.save_checkpoint(tmp_path / "mid.ckpt")

    watch = [Watch(modules="body.0", tensors="output", stats="mean")]
    options: dict[str, Any] = {"accumulate_grad_batches": 3}
    trainer_of(tmp_path, StatsMonitor(watch), Save(), **options).fit(Net(), data())
    model, logger = Net(log=True), TensorBoardLogger(tmp_path, name="resumed")
    trainer = trainer_of(tmp_path, StatsMonitor(watch), logger=logger, **options)
    trainer.fit(model, data(), ckpt_path=tmp_path / "mid.ckpt")
    counts = read_run(logger.log_dir).table("output", "count")
    assert counts.steps.tolist() == [0, 1]
    assert counts["body.0"].tolist() == [2 * 4 * 8, 3 * 4 * 8]
    assert_clean(model)


def test_tensorboard_gets_exactly_one_event_a_step(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    model = Net(log=True)
    monitor = StatsMonitor(everything(), max_scalars=5000, max_histograms=5000, histogram_every_n_steps=1)
    transforms = GradientTransforms([Apply(Scale(0.5), params="*")])
    trainer = trainer_of(
        tmp_path, monitor, transforms, logger=logger, max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=1.0
    )
    trainer.fit(model, data())
    events = tables(logger.log_dir)
    assert [step for step, _ in events] == list(range(6))
    run = read_run(logger.log_dir)
    assert run.scalars["loss"][0].tolist() == list(range(6))
    for tag, value in monitor.latest.items():
        steps, values = run.scalars[f"watch/{tag}"]
        assert steps.tolist() == list(range(1 if tag == "run/overhead" else 0, 6)), tag
        assert values[-1] == pytest.approx(value, rel=1e-6, nan_ok=True)
    assert any(tag.startswith("transform_norm_before/0_Scale") for tag in monitor.latest)
    # No event of a scalar alone: all of ours is in these six, and the text and the layout in one before them.
    ours = {f"watch/{tag}" for tag in monitor.latest} | set(run.histograms)
    ours -= {"watch/run/overhead"}  # which the first step does not have
    seen = Counter(tag for _, tags in events for tag in tags if tag in ours)
    assert set(seen.values()) == {6} and len(seen) == len(ours)
    accumulator = EventAccumulator(logger.log_dir, size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    assert "watch/grad_norm/body.0.weight" in tags["scalars"] and "watch/grad_histogram/body.0.weight" in tags["histograms"]
    assert run.texts["watch/run/rules"].startswith("- monitor: `StatsMonitor(")


def test_tensorboard_table_and_scalars_agree(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    trainer_of(tmp_path, StatsMonitor(max_scalars=500), logger=logger).fit(Net(), data())
    run = read_run(logger.log_dir)
    for tensor, stat in run.tensors():
        table = run.table(tensor, stat)
        for name in table.names if stat != "count" else ():
            tag = "watch/run/loss" if tensor == "loss" else f"watch/{tensor}_{stat}/{name}"
            assert run.scalars[tag][1] == pytest.approx(table[name], rel=1e-6)


def test_csv_has_one_row_of_ours_a_step(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    model, monitor = Net(log=True), StatsMonitor(NORMS)
    trainer_of(tmp_path, monitor, logger=logger, max_epochs=2, accumulate_grad_batches=3).fit(model, data())
    with open(Path(logger.log_dir) / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    ours = [row for row in rows if row["watch/run/grad_norm"]]
    assert [int(row["step"]) for row in ours] == [int(row["step"]) for row in rows if row["loss"]] == list(range(4))
    for tag, value in monitor.latest.items():
        assert float(ours[-1][f"watch/{tag}"]) == pytest.approx(value)


class Deep(Net):
    """Twenty-four layers, each with a weight and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(24)), nn.Linear(6, 3))


CHARTS = {f"watch/{each}" for each in ("grad_norm", "update_ratio", "output_std")}


def test_by_default_tensorboard_gets_what_people_look_at_and_other_loggers_the_global_numbers(tmp_path: Path) -> None:
    board, table = TensorBoardLogger(tmp_path, name="board"), CSVLogger(tmp_path)
    trainer_of(tmp_path, StatsMonitor(), HealthMonitor(), logger=[board, table]).fit(Net(), data())
    run = read_run(board.log_dir)
    charts = {tag for tag in run.scalars if not tag.startswith("watch/run/")}
    assert {tag.partition("/")[0] + "/" + tag.split("/")[1] for tag in charts if tag.startswith("watch/")} == CHARTS
    assert ("grad", "mean") in run.tensors() and len(run.table("grad", "mean").names) == 4
    with open(Path(table.log_dir) / "metrics.csv") as file:
        columns = next(csv.reader(file))
    assert len(columns) <= 40 and [each for each in columns if each.startswith("watch/") and "/run/" not in each] == []


def test_a_default_monitor_of_many_layers_merges_its_charts_without_a_warning(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    trainer_of(tmp_path, StatsMonitor(), logger=logger).fit(Deep(), data(2))
    tags = [tag for tag in read_run(logger.log_dir).scalars if tag.startswith("watch/") and "/run/" not in tag]
    assert 50 < len(tags) <= 100


def test_every_logger_gets_the_step(tmp_path: Path) -> None:
    boards = [TensorBoardLogger(tmp_path, name="one"), TensorBoardLogger(tmp_path, name="two")]
    memory, table = Memory(), CSVLogger(tmp_path)
    monitor = StatsMonitor(NORMS)
    trainer_of(tmp_path, monitor, logger=[boards[0], memory, table, boards[1]]).fit(Net(), data())
    assert memory.steps == list(range(6)) and memory.ours[-1][1] == monitor.latest
    for board in boards:
        assert [step for step, _ in tables(board.log_dir)] == list(range(6))
        assert "watch/run/rules" in read_run(board.log_dir).texts
    assert (Path(table.log_dir) / "metrics.csv").exists()


def test_without_a_logger_latest_still_holds_the_step(tmp_path: Path) -> None:
    monitor = StatsMonitor()
    with pytest.warns(UserWarning) as caught:
        trainer_of(tmp_path, monitor, logger=False).fit(Net(), data())
    (said,) = ours_in(caught)
    assert said.startswith("StatsMonitor: nothing is written: loggers=['all'] chooses none of the Trainer's loggers (none). ")
    assert "TensorBoardLogger" in said and "logdir=" in said and "loggers=[]" in said
    assert monitor.latest["grad_norm/body.0.weight"] > 0
    assert not list(tmp_path.iterdir())


class Steps(StepConsumer):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def consume(self, view: StepView) -> None:
        self.steps.append(view.step)


@pytest.mark.parametrize("options", [{"loggers": []}, {"consumers": [Steps()]}], ids=["loggers=[]", "consumers"])
def test_who_wants_no_logger_is_not_warned(tmp_path: Path, options: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer_of(tmp_path, StatsMonitor(NORMS, **options), logger=False).fit(Net(), data())
    assert ours_in(caught) == []


def test_other_loggers_get_the_steps_at_which_lightning_logs(tmp_path: Path) -> None:
    board, memory = TensorBoardLogger(tmp_path, name="run"), Memory()
    options: dict[str, Any] = {"log_every_n_steps": 3, "max_epochs": 2, "accumulate_grad_batches": 2}
    trainer_of(tmp_path, StatsMonitor(NORMS), logger=[board, memory], **options).fit(Net(log=True), data(14))
    assert memory.steps == memory.steps_of("loss") == [2, 5, 8, 11]
    assert [step for step, _ in tables(board.log_dir)] == list(range(14))


def test_validation_reaches_other_loggers_whatever_the_interval(tmp_path: Path) -> None:
    memory = Memory()
    monitor = StatsMonitor([Watch(modules="body.0", tensors="output", stats="mean")], stages=["train", "validate"])
    trainer = trainer_of(tmp_path, monitor, logger=memory, log_every_n_steps=6, max_epochs=2)
    trainer.fit(ValNet(log=True), data(), data())
    assert memory.steps_of("output_mean/body.0") == [5, 11] and memory.steps_of("val_output_mean/body.0") == [5, 11]


def test_steps_that_never_meet_are_reported(tmp_path: Path) -> None:
    memory = Memory()
    trainer = trainer_of(tmp_path, StatsMonitor(NORMS, every_n_steps=[0, 1]), logger=memory, log_every_n_steps=4)
    with pytest.warns(
        UserWarning, match="^Memory got no statistics: no watched step was one at which Lightning logs; a smaller"
    ):
        trainer.fit(Net(log=True), data())
    assert memory.steps == []


@pytest.mark.parametrize(
    ("loggers", "chosen"),
    [
        ("all", "board memory table"),
        ("tensorboard", "board"),
        (["Memory", "tensorboard"], "board memory"),
        ("CSVLogger", "table"),
    ],
)
def test_loggers_are_chosen(tmp_path: Path, loggers: Any, chosen: str) -> None:
    board, memory, table = TensorBoardLogger(tmp_path, name="tb"), Memory(), CSVLogger(tmp_path)
    trainer_of(tmp_path, StatsMonitor(NORMS, loggers=loggers), logger=[board, memory, table]).fit(Net(log=True), data())
    got = {
        "board": bool(tables(board.log_dir)),
        "memory": bool(memory.ours),
        "table": "grad_norm" in (Path(table.log_dir) / "metrics.csv").read_text(),
    }
    assert [name for name, there in got.items() if there] == chosen.split()
    assert memory.steps_of("loss")


def test_a_choice_that_none_of_the_loggers_is_says_what_there_is(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"nothing is written: loggers=\['tensorboard'\] chooses none of .* loggers \(Memory\)"
    ):
        trainer_of(tmp_path, StatsMonitor(NORMS, loggers="tensorboard"), logger=Memory()).fit(Net(), data())


def test_a_name_that_no_logger_has_is_said_once(tmp_path: Path) -> None:
    monitor = StatsMonitor(NORMS, loggers=["CSVLoger", "tensorboard"], logdir=tmp_path / "ours")
    with pytest.warns(UserWarning) as caught:
        trainer_of(tmp_path, monitor, logger=CSVLogger(tmp_path)).fit(Net(), data())
    assert ours_in(caught) == [
        "loggers: no logger of the Trainer is a 'CSVLoger' (did you mean 'CSVLogger'?); it has CSVLogger"
    ]


# -- a TensorBoard of our own ----------------------------------------------------------------------------------------------


def writing_threads() -> int:
    return sum(type(thread).__name__ == "_AsyncWriterThread" for thread in threading.enumerate())


def test_a_logdir_makes_a_run_that_other_callbacks_share(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logdir = tmp_path / "ours"
    capture = ActivationCapture("body.0", every_n_steps=1, tensorboard=True)
    halve = GradientTransforms([Apply(Scale(0.5), params="*")])
    trainer = trainer_of(tmp_path, StatsMonitor(NORMS, logdir=logdir), halve, capture, logger=False)
    with caplog.at_level("INFO"):
        trainer.fit(Net(), data())
        trainer.fit_loop.max_epochs = 2
        trainer.fit(Net(), data())  # goes on in its folder
        trainer_of(tmp_path, StatsMonitor(NORMS, logdir=logdir), logger=CSVLogger(tmp_path)).fit(Net(), data())
    assert sorted(path.name for path in logdir.iterdir()) == ["run_0", "run_1"]
    run = read_run(logdir / "run_0")
    assert run.scalars["watch/grad_norm/body.0.weight"][0].tolist() == list(range(12))
    assert run.scalars["watch/transform_norm_after/0_Scale"][0].tolist() == list(range(12))
    assert (logdir / "run_0" / "projector_config.pbtxt").exists()
    said = [record.getMessage() for record in caplog.records if "lightning_hooks" in record.getMessage()]
    assert said == [f"lightning_hooks writes to {logdir / run}: tensorboard --logdir {logdir}" for run in ("run_0", "run_1")]


def test_a_logdir_is_not_used_beside_a_tensorboard(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="theirs")
    trainer_of(tmp_path, StatsMonitor(NORMS, logdir=tmp_path / "ours"), logger=logger).fit(Net(), data())
    assert not (tmp_path / "ours").exists() and len(tables(logger.log_dir)) == 6


def test_a_logdir_elsewhere_is_refused() -> None:
    said = "^logdir must be a folder of this machine, got 's3://bucket/x'; give the Trainer a TensorBoardLogger for another$"
    with pytest.raises(RuleError, match=said):
        StatsMonitor(NORMS, logdir="s3://bucket/x")


@pytest.mark.parametrize("below", ["", "/deep/er"])
def test_a_logdir_that_cannot_be_written_to_is_an_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    def refused(folder: Path) -> None:
        model = Net()
        said = rf"^logdir: cannot write to '{folder}{below}': '{folder}' is not a writable folder$"
        with pytest.raises(RuleError, match=said):
            trainer_of(tmp_path, StatsMonitor(NORMS, logdir=f"{folder}{below}"), logger=False).fit(model, data())
        assert_clean(model)

    (tmp_path / "file").write_text("")
    refused(tmp_path / "file")
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    refused(tmp_path)


def test_a_logdir_in_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    capture = ActivationCapture("body.0", every_n_steps=1, folder="~/captures")
    trainer_of(tmp_path, StatsMonitor(NORMS, logdir="~/ours"), capture, logger=False).fit(Net(), data())
    assert {"ours", "captures"} <= {path.name for path in tmp_path.iterdir()} and not (tmp_path / "~").exists()


@pytest.mark.parametrize("fails", [False, True], ids=["", "error"])
def test_our_event_file_is_closed_with_the_run(tmp_path: Path, fails: bool) -> None:
    class Fails(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if fails and batch_idx == 3:
                raise ValueError("stop")

    before = writing_threads()
    trainer = trainer_of(tmp_path, StatsMonitor(NORMS, logdir=tmp_path), Fails(), logger=False)
    with pytest.raises(ValueError, match="stop") if fails else nullcontext():
        trainer.fit(Net(), data())
    assert writing_threads() == before
    assert read_run(tmp_path / "run_0").scalars["watch/grad_norm/body.0.weight"][0].tolist() == list(range(4 if fails else 6))


# -- limits ----------------------------------------------------------------------------------------------------------------


def test_histograms_have_an_interval_and_a_limit_of_their_own(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    watch = [Watch(params="*", tensors=["grad", "param"], stats=["norm", "histogram"])]
    monitor = StatsMonitor(watch, max_histograms=4, histogram_every_n_steps=4)
    said = (
        r"^8 histograms are more than max_histograms=4: 4 are written, merged along the module tree "
        r"\(tables have every row\); max_histograms=8 keeps level 3. See docs/rules.md#many-layers$"
    )
    with pytest.warns(UserWarning, match=said) as caught:
        trainer_of(tmp_path, monitor, logger=logger, max_epochs=2).fit(Net(), data())
    assert len(ours_in(caught)) == 1
    run = read_run(logger.log_dir)
    assert sorted(run.histograms) == [f"watch/{t}_histogram/body.{i}" for t in ("grad", "param") for i in (0, 3)]
    for name, elements in (("body.0", 6 * 8 + 8), ("body.3", 8 * 3 + 3)):
        drawn = run.histograms[f"watch/param_histogram/{name}"]
        assert [step for step, _, _ in drawn] == [0, 4, 8]
        assert all(counts.sum() == elements for _, _, counts in drawn)
        weight, bias = (run.histogram("param", f"{name}.{kind}") for kind in ("weight", "bias"))
        assert [step for step, _, _ in weight] == [step for step, _, _ in bias] == [0, 4, 8]
        assert [of_weight[2].sum() + of_bias[2].sum() for of_weight, of_bias in zip(weight, bias, strict=True)] == [
            elements
        ] * 3
    assert "watch/grad_norm/body.0.weight" in run.scalars
    with pytest.raises(RuleError, match=r"^no histograms 'watch/update_histogram/body.0.bias' of a row in .* \(did you mean"):
        run.histogram("update", "body.0.bias")


class Turns(Net):
    """Calls its first layer in odd steps only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body[3](self.body[0](x) if self.global_step % 2 else x.new_ones(len(x), 8))


def test_each_histogram_has_the_interval_by_itself(tmp_path: Path) -> None:
    """Whatever else is due at a step, and also where what it shows is measured at other steps than the rest."""
    logger = TensorBoardLogger(tmp_path)
    watch = [
        Watch(params="body.3.*", tensors="param", stats="histogram"),
        Watch(params="body.3.*", tensors="grad", stats="histogram", every_n_steps={"first": 3, "every": 4}),
        Watch(modules="body.0", tensors="output", stats="histogram"),
        Watch(params="*", tensors="update", stats="norm", every_n_steps=3),
    ]
    with pytest.warns(UserWarning, match="not called in the first step"):
        trainer_of(tmp_path, StatsMonitor(watch, histogram_every_n_steps=5), logger=logger).fit(Turns(), data(13))
    drawn = {tag: [step for step, _, _ in points] for tag, points in read_run(logger.log_dir).histograms.items()}
    assert drawn == {
        **{f"watch/param_histogram/body.3.{name}": [0, 5, 10] for name in ("weight", "bias")},
        **{f"watch/grad_histogram/body.3.{name}": [3, 11] for name in ("weight", "bias")},  # due at 3, 7 and 11
        "watch/output_histogram/body.0": [1, 7],
    }


def test_all_stages_share_the_limit_of_scalars(tmp_path: Path) -> None:
    memory = Memory()
    watch = [Watch(modules="body.*", tensors="output", stats=["mean", "norm"])]  # 8 scalars in each stage
    monitor = StatsMonitor(watch, stages=["train", "validate"], max_scalars=12)
    with pytest.warns(UserWarning, match="^16 scalars are more than max_scalars=12") as caught:
        trainer_of(tmp_path, monitor, logger=memory, max_epochs=2).fit(ValNet(), data(), data())
    assert len(ours_in(caught)) == 1
    tags = {tag for _, metrics in memory.ours for tag in metrics if not tag.startswith("run/")}
    assert len(tags) <= 12
    assert {f"{stage}output_norm/body.{i}" for stage in ("", "val_") for i in range(4)} <= tags


# -- the page --------------------------------------------------------------------------------------------------------------


class Spare(Net):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)


def test_the_text_has_five_lines_on_settings_merging_and_idle_modules_and_leads_to_the_page(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    monitor = StatsMonitor([Watch(modules="*", select="leaves", tensors="output", stats=["norm", "mean"])], max_scalars=6)
    with pytest.warns(UserWarning):
        trainer_of(tmp_path, monitor, logger=logger, accumulate_grad_batches=2).fit(Spare(), data())
    page = read_run(logger.log_dir).texts["watch/run/rules"]
    lines = page.splitlines()
    assert lines[0] == f"- monitor: `{monitor!r}`" and "max_scalars=6" in lines[0]
    assert lines[1].startswith("- run: precision 32-true, accumulate_grad_batches 2, ")
    assert (
        lines[2].startswith("- merged: 10 scalars are more than max_scalars=6") and f"read_run({logger.log_dir!r})" in lines[2]
    )
    assert lines[3] == "- not called in the first watched step: spare (Linear)"
    assert lines[4] == "- watched: 5 modules at every step; watch[0] leaves out body (Sequential): has children"
    command = f"lightning-hooks view {logger.log_dir}"
    assert lines[5:] == ["", f"All of it, with the values of every row: `{command}`, or the tab Hooks."]


def test_the_page_is_written_without_a_watched_step(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    trainer_of(tmp_path, StatsMonitor(NORMS, every_n_steps=100), logger=logger).fit(Net(), data())
    assert "- watched: 4 modules and 4 parameters every 100 steps" in read_run(logger.log_dir).texts["watch/run/rules"]


@pytest.mark.parametrize("kind", [TensorBoardLogger, CSVLogger])
def test_fast_dev_run_writes_nothing(tmp_path: Path, kind: Any) -> None:
    monitor, model = StatsMonitor(), Net(log=True)
    trainer_of(tmp_path, monitor, logger=kind(tmp_path), fast_dev_run=2).fit(model, data())
    assert monitor.latest and not list(tmp_path.iterdir())
    assert_clean(model)


def test_two_fits_into_one_run_are_read_back_as_one(tmp_path: Path) -> None:
    for fit, watch in enumerate((NORMS, NORMS[:1])):
        logger = TensorBoardLogger(tmp_path, name="run", version=0)
        model = Net(log=True)
        trainer_of(tmp_path, StatsMonitor(watch, every_n_steps=[2 * fit, 2 * fit + 1]), logger=logger).fit(model, data())
    table = read_run(tmp_path / "run" / "version_0").table("grad", "norm")
    assert table.steps.tolist() == [0, 1, 2, 3] and set(table.names) == {n for n, _ in Net().named_parameters()}
    assert not torch.isnan(torch.tensor(table.values)).any()


class Broken(Memory):
    """A disk that is full from the third step on."""

    error: Exception = OSError("no space left on device")

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if step == 2 and "grad_norm/body.0.weight" in map(name_of, metrics):
            raise self.error
        super().log_metrics(metrics, step)


def test_a_failing_logger_raises_its_own_exception(tmp_path: Path) -> None:
    model, logger = Net(), Broken()
    with pytest.raises(OSError, match="no space left") as raised:
        trainer_of(tmp_path, StatsMonitor(NORMS), logger=logger).fit(model, data())
    assert raised.value is logger.error
    assert_clean(model)


def test_a_failing_logger_does_not_keep_the_step_from_the_others() -> None:
    logger, other = Broken(), Memory()
    writer = LoggerWriter([logger, other], logs_at=lambda step: True)
    for step in (1, 2, 3):
        view = StepView(step, summaries={"grad_norm/body.0.weight": 1.0})
        with pytest.raises(OSError, match="no space left") if step == 2 else nullcontext():
            writer.consume(view)
    assert [step for step, _ in logger.ours] == [1, 3] and [step for step, _ in other.ours] == [1, 2, 3]


def test_a_failing_logger_detaches_the_monitor_and_training_goes_on(tmp_path: Path) -> None:
    model, logger = Net(log=True), Broken()
    monitor, other = StatsMonitor(NORMS, on_error="warn"), StatsMonitor(NORMS, prefix="other/")
    trainer = trainer_of(tmp_path, monitor, other, logger=logger, max_epochs=2)
    with pytest.warns(UserWarning) as caught:
        trainer.fit(model, data())
    # Lightning warns of few workers of a data loader where there are more than two cores.
    said = [str(w.message) for w in caught if issubclass(w.category, UserWarning) and "many workers" not in str(w.message)]
    assert said == ["a StatsMonitor stopped watching after OSError: no space left on device; training continues"]
    assert trainer.global_step == 12
    assert [step for step, metrics in logger.ours if "grad_norm/body.0.weight" in metrics] == [0, 1]
    assert [step for step, metrics in logger.ours if "other/grad_norm/body.0.weight" in metrics] == list(range(12))
    assert_clean(model)


def test_values_that_are_not_finite_reach_every_logger(tmp_path: Path) -> None:
    class Bad(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch, batch_idx) * (float("nan") if batch_idx == 1 else 1.0)

    logger, memory, table = TensorBoardLogger(tmp_path), Memory(), CSVLogger(tmp_path)
    trainer_of(tmp_path, StatsMonitor(max_scalars=500), logger=[logger, memory, table]).fit(Bad(), data(2))
    tag = "grad_norm/body.0.weight"
    assert math.isnan(memory.values(tag)[1]) and not math.isnan(memory.values(tag)[0])
    assert memory.values("run/nonfinite")[0] == 0 < memory.values("run/nonfinite")[1]
    assert math.isnan(read_run(logger.log_dir).scalars[f"watch/{tag}"][1][1])


@pytest.mark.parametrize("kind", ["csv", "memory", "none"])
def test_the_page_exists_whatever_the_logger_is(tmp_path: Path, kind: str) -> None:
    logger: Any = {"csv": CSVLogger(tmp_path), "memory": Memory(), "none": False}[kind]
    trainer_of(tmp_path, StatsMonitor(), HealthMonitor(), logger=logger).fit(Net(), data())
    folders = {"csv": tmp_path / "lightning_logs" / "version_0", "memory": tmp_path / "lightning_hooks_logs" / "run_0"}
    if kind == "none":
        assert list(tmp_path.rglob("events*")) == []
    else:
        assert [path.parent for path in tmp_path.rglob("events*")] == [folders[kind]]
        assert (folders[kind] / "findings.jsonl").exists() and len(list(read_run(folders[kind]).views())) == 6
