"""A consumer acts: where its files go, how the run trains, and what it asks the run to do."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_hooks import RuleError, RunContext, RunFacts, StatsMonitor, StepConsumer, StepView, UnsupportedError, Watch
from lightning_hooks.callbacks._run_context import TrainerContext
from tests import late_copies
from tests.callbacks.models import Gan, Memory, Net, ValNet, adamw, assert_clean, data, trainer_of

OUTPUT = [Watch(modules="body.0", tensors="output", stats="mean")]


class Acts(StepConsumer):
    """Keeps its run, and does something with it at a step."""

    def __init__(self, at: int | None = None, does: Callable[[RunContext], Any] = lambda run: None) -> None:
        self.at, self.does = at, does
        self.steps: list[tuple[str, int]] = []

    def start(self, rows: Any, run: RunContext) -> None:
        self.run, self.folder, self.facts = run, run.folder, run.facts

    def consume(self, view: StepView) -> None:
        self.steps.append((view.stage, view.step))
        if view.step == self.at:
            self.does(self.run)


def fit(
    root: Path, acts: Acts, *others: Callback, batches: int = 6, model: Any = None, loggers: Any = "all", **options: Any
) -> Any:
    trainer = trainer_of(root, StatsMonitor(OUTPUT, consumers=[acts], loggers=loggers), *others, **options)
    model = model or Net()
    trainer.fit(model, data(batches), *([data(2)] if isinstance(model, ValNet) else []))
    assert_clean(model)
    return trainer


def test_the_folder_is_that_of_the_first_logger_or_else_of_the_trainer(tmp_path: Path) -> None:
    for logger, folder in [
        (TensorBoardLogger(tmp_path, name="board"), tmp_path / "board" / "version_0"),
        (CSVLogger(tmp_path, name="csv"), tmp_path / "csv" / "version_0"),
        (Memory(), tmp_path / "lightning_hooks_logs" / "run_0"),
        (False, tmp_path),
    ]:
        fit(tmp_path, acts := Acts(), logger=logger, batches=1)
        assert acts.folder == folder


def test_the_folder_is_that_of_an_event_file_of_our_own(tmp_path: Path) -> None:
    acts = Acts()
    monitor = StatsMonitor(OUTPUT, consumers=[acts], logdir=tmp_path / "ours")
    trainer = trainer_of(tmp_path, monitor, max_epochs=1)
    trainer.fit(Net(), data(1))
    assert acts.folder == tmp_path / "ours" / "run_0" and list(acts.folder.glob("events*"))
    trainer.validate(ValNet(), data(1), verbose=False)
    assert [path.name for path in (tmp_path / "ours").iterdir()] == ["run_0"]


def test_a_run_without_a_folder_on_this_machine_has_none(tmp_path: Path) -> None:
    class Elsewhere(Memory):
        save_dir = "s3://bucket/runs"  # type: ignore[assignment]

    acts = Acts(0, lambda run: run.save_checkpoint("first"))
    with pytest.raises(UnsupportedError, match="save_checkpoint: 'first.ckpt' has no folder, because the Trainer's log folder"):
        fit(tmp_path, acts, logger=Elsewhere(), loggers="Elsewhere")
    assert acts.folder is None


def test_a_request_to_focus_waits_for_the_monitor(tmp_path: Path) -> None:
    """A consumer may ask for it while a checkpoint is saved, which publishes what is pending."""
    trainer = trainer_of(tmp_path)
    context = TrainerContext(trainer, tmp_path)
    context.focus(3)
    context.focus(2)
    context.fulfil(trainer)
    assert context.has_requests and context.take_focus() == 3 and not context.has_requests


def test_the_facts_are_plain_values(tmp_path: Path) -> None:
    acts = Acts()
    fit(tmp_path, acts, model=Net(adamw), accumulate_grad_batches=2, precision="bf16-mixed")
    (optimizer,) = acts.facts.optimizers
    (group,) = optimizer.groups
    assert optimizer.type == "AdamW" and (group.lr, group.weight_decay) == (0.01, 0.01)
    assert group.params == ("body.0.weight", "body.0.bias", "body.3.weight", "body.3.bias")
    assert acts.facts == RunFacts(acts.facts.optimizers, precision="bf16-mixed", accumulate=2)


def test_the_learning_rate_is_that_of_now(tmp_path: Path) -> None:
    class Scheduled(Net):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), "interval": "step"}]

    seen: list[float | None] = []

    class Reads(Acts):
        def consume(self, view: StepView) -> None:
            seen.append(self.run.facts.optimizers[0].groups[0].lr)

    fit(tmp_path, Reads(), model=Scheduled(), batches=3)
    assert seen == [0.5, 0.25, 0.125]


def test_a_learning_rate_on_the_host_is_read_from_a_tensor(tmp_path: Path) -> None:
    fit(tmp_path, acts := Acts(), model=Net(lambda params: torch.optim.SGD(params, lr=torch.tensor(0.5))), batches=1)
    assert acts.facts.optimizers[0].groups[0].lr == 0.5


def test_there_are_no_optimizers_outside_a_fit(tmp_path: Path) -> None:
    acts = Acts()
    monitor = StatsMonitor(OUTPUT, stages=["validate"], consumers=[acts])
    trainer_of(tmp_path, monitor).validate(ValNet(), data(1), verbose=False)
    assert acts.facts.optimizers == () and acts.facts.precision == "32-true"


def test_every_optimizer_is_a_fact(tmp_path: Path) -> None:
    acts = Acts()
    monitor = StatsMonitor([Watch(modules="gen", tensors="output")], consumers=[acts])
    trainer_of(tmp_path, monitor).fit(Gan(), data(1))
    assert [(each.type, each.groups[0].params) for each in acts.facts.optimizers] == [
        ("SGD", ("gen.weight", "gen.bias")),
        ("Adam", ("disc.weight", "disc.bias")),
    ]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late copies"])
def test_a_fit_stops_at_the_end_of_the_step_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    if late:
        late_copies.install(monkeypatch)

    def stop(run: RunContext) -> None:
        run.stop("the loss is not finite")
        run.stop("a second reason")

    with caplog.at_level(logging.INFO):
        trainer = fit(tmp_path, Acts(2, stop))
    assert trainer.global_step == 3 + late
    lines = [record.message for record in caplog.records if "consumer" in record.message]
    assert lines == ["a consumer of StatsMonitor stops the fit: the loss is not finite"]


@pytest.mark.parametrize("every", [1, 2])
def test_a_request_does_not_wait_for_the_next_watched_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    late_copies.install(monkeypatch)
    acts = Acts(1, lambda run: run.stop("enough"))
    monitor = StatsMonitor(OUTPUT, every_n_steps=every, consumers=[acts])

    class Reads(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            monitor.latest  # noqa: B018 - publishes a view before its time

    trainer = trainer_of(tmp_path, monitor, Reads())
    trainer.fit(Net(), data())
    assert trainer.global_step == 3


def test_a_stop_waits_for_min_epochs(tmp_path: Path) -> None:
    assert fit(tmp_path, Acts(0, lambda run: run.stop("early")), min_epochs=2, max_epochs=3).global_step == 12


def test_a_stop_in_a_validation_ends_the_fit(tmp_path: Path) -> None:
    acts = Acts(1, lambda run: run.stop("worse than before"))
    monitor = StatsMonitor(OUTPUT, stages=["validate"], consumers=[acts])
    trainer = trainer_of(tmp_path, monitor, val_check_interval=2, num_sanity_val_steps=0)
    trainer.fit(ValNet(), data(), data(2))
    assert trainer.global_step < 6 and acts.steps[0][0] == "validate"


def test_outside_a_fit_the_reason_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor = StatsMonitor(OUTPUT, stages=["test"], consumers=[Acts(0, lambda run: run.stop("bad"))])

    class Tested(Net):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self(batch[0])

    with caplog.at_level(logging.INFO):
        trainer_of(tmp_path, monitor).test(Tested(), data(1), verbose=False)
    assert "a consumer of StatsMonitor asked to stop, but only a fit can be stopped: bad" in caplog.text


def test_a_checkpoint_is_that_of_the_end_of_the_step(tmp_path: Path) -> None:
    saved: dict[str, Any] = {}

    class Keeps(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                saved.update({name: value.clone() for name, value in pl_module.state_dict().items()})

    acts = Acts(2, lambda run: run.save_checkpoint("spike"))
    fit(tmp_path, acts, Keeps())
    checkpoint = torch.load(tmp_path / "spike.ckpt", weights_only=False)
    assert checkpoint["global_step"] == 3 and acts.steps[-1] == ("train", 5)
    assert all(torch.equal(checkpoint["state_dict"][name], value) for name, value in saved.items())


def test_the_last_step_can_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late_copies.install(monkeypatch)
    fit(tmp_path, Acts(5, lambda run: run.save_checkpoint("last")))
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["global_step"] == 6


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/a", "a\\b", "a\0b", 3, None])
def test_a_name_that_is_no_file_in_the_folder_is_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(RuleError, match="save_checkpoint: name must be the name of a file in the folder of the run"):
        fit(tmp_path, Acts(0, lambda run: run.save_checkpoint(name)), batches=1)


@pytest.mark.parametrize("reason", ["", "  ", None, 3])
def test_a_reason_that_says_nothing_is_refused(tmp_path: Path, reason: Any) -> None:
    with pytest.raises(RuleError, match="stop: reason must be a text that says why the run stops"):
        fit(tmp_path, Acts(0, lambda run: run.stop(reason)), batches=1)


def test_where_saving_fails_the_fit_ends_whatever_on_error_says(tmp_path: Path) -> None:
    class FullDisk(Callback):
        def on_save_checkpoint(self, *args: Any) -> None:
            raise OSError(28, "No space left on device")

    acts = Acts(0, lambda run: run.save_checkpoint("spike"))
    model = Net()
    with pytest.raises(OSError, match="No space left"):
        trainer_of(tmp_path, StatsMonitor(OUTPUT, consumers=[acts], on_error="warn"), FullDisk()).fit(model, data(2))
    assert_clean(model)


def test_a_consumer_that_keeps_its_run_keeps_nothing_alive(tmp_path: Path) -> None:
    acts = Acts()
    trainer = fit(tmp_path, acts, model=(model := Net()))
    known = ref(model), ref(trainer)
    del model, trainer
    gc.collect()
    assert [each() for each in known] == [None, None]
    assert acts.run.facts == RunFacts()
    acts.run.stop("too late")  # does nothing
