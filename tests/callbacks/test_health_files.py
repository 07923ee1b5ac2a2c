"""The files of a `HealthMonitor`: full disks, damaged journals and checkpoints, other runs and loggers of the folder."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_hooks import HealthMonitor, StatsMonitor
from lightning_hooks.health import journal
from lightning_hooks.health.journal import read_findings
from tests.callbacks.health_fits import fit
from tests.callbacks.models import Net, ValNet, adamw, data, trainer_of
from tests.callbacks.test_health import Forgotten, rules_of

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is always full")


@needs_full
def test_a_full_disk_under_the_journal_is_one_warning_and_the_summary_has_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "open_own", lambda path: (open("/dev/full", "wb", buffering=0), 1))  # noqa: SIM115
    monitor = HealthMonitor()
    (said,) = fit(tmp_path, monitor)
    assert "findings.jsonl cannot be written" in said and "No space left on device" in said
    assert "findings wait in memory until it can, and are lost if it cannot before the training ends" in said
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert [each["rule"] for each in summary["findings"]] == [each.rule for each in monitor.findings]


def test_a_full_disk_under_the_summary_is_a_warning_and_the_journal_has_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    monitor = HealthMonitor()
    (said,) = fit(tmp_path, monitor)
    assert "summary.json cannot be written" in said and "No space left on device" in said
    known = [(each.rule, each.first_step) for each in read_findings(tmp_path).findings]
    assert known == [(each.rule, each.first_step) for each in monitor.findings]
    assert [path.name for path in tmp_path.iterdir()] == ["findings.jsonl"]


def test_a_folder_in_place_of_the_journal_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "findings.jsonl").mkdir()
    said = fit(tmp_path, HealthMonitor())
    assert "findings.jsonl cannot be written" in said[0]


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")
def test_a_resume_in_the_folder_of_a_damaged_journal_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "findings.jsonl"

    def fit(steps: int, start: Path | None) -> HealthMonitor:
        monitor = HealthMonitor()
        saver = ModelCheckpoint(tmp_path / "saved", save_last=True, every_n_train_steps=1)
        options = {"max_steps": steps, "enable_checkpointing": True}
        trainer = trainer_of(tmp_path, StatsMonitor(loggers=[]), monitor, saver, **options)
        trainer.fit(Forgotten(), data(40), ckpt_path=start)
        return monitor

    first = fit(10, None)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\x00\xff garbage\n", *lines[2:], b'{"event": "new", "step"']))
    resumed = fit(40, tmp_path / "saved" / "last.ckpt")
    assert {each.number for each in first.findings} <= {each.number for each in resumed.findings}
    with pytest.warns(UserWarning, match="findings.jsonl: line .* is ignored") as said:
        known = read_findings(tmp_path)
    assert len(said) == 2 and known.findings == resumed.findings and known.has_ended and known.fit == 2


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(
    "damage", [lambda state: 3, lambda state: [], lambda state: {}, lambda state: {**state, "diagnosis": {"count": "x"}}]
)
def test_a_damaged_diagnosis_in_a_checkpoint_starts_again(tmp_path: Path, beside: bool, damage: Any) -> None:
    def trainer(steps: int) -> tuple[HealthMonitor, Trainer]:
        monitor = HealthMonitor()
        others = [StatsMonitor(loggers=[])] if beside else []
        return monitor, trainer_of(tmp_path, *others, monitor, max_steps=steps, max_epochs=-1)

    _, first = trainer(5)
    first.fit(Forgotten(), data(40))
    first.save_checkpoint(tmp_path / "last.ckpt")
    content = torch.load(tmp_path / "last.ckpt", weights_only=False)
    (state,) = content["lightning_hooks.HealthMonitor"].values()
    state["diagnosis"] = damage(state["diagnosis"])
    torch.save(content, tmp_path / "damaged.ckpt")
    monitor, second = trainer(20)
    with pytest.warns(UserWarning, match="^HealthMonitor: the checkpoint is damaged, and its state starts again: "):
        second.fit(Forgotten(), data(40), ckpt_path=tmp_path / "damaged.ckpt")
    assert "NotInOptimizer" in rules_of(monitor) and monitor.summary["steps"] == 15


def test_files_of_a_fit_are_not_written_over_by_other_stages(tmp_path: Path) -> None:
    monitor = HealthMonitor()
    trainer = trainer_of(tmp_path, StatsMonitor(loggers=[], stages=["train", "validate"]), monitor)
    model = ValNet(adamw)
    trainer.fit(model, data(10), data(1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    trainer.validate(model, data(1), verbose=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert monitor.summary["steps"] == 10


def test_a_csv_logger_finds_its_folder_empty(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)  # it warns of a folder that is not empty
    trainer_of(tmp_path, StatsMonitor(loggers=[]), HealthMonitor(), logger=logger).fit(Net(adamw), data(10))
    assert read_findings(logger.log_dir).has_ended


def test_a_fast_dev_run_writes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monitor = HealthMonitor()
    trainer_of(tmp_path, StatsMonitor(loggers=[]), monitor, fast_dev_run=3).fit(Forgotten(), data(10))
    assert "NotInOptimizer" in rules_of(monitor) and not list(tmp_path.iterdir())
