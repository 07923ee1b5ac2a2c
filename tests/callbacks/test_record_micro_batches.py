"""The batch with the fault among several whose gradients one update reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import FlightRecorder
from lightning_hooks.engine.recording import batches, record_folder
from lightning_hooks.engine.recording.saving import load_batch, save_batch
from lightning_hooks.recorder.record import FlightRecord, Verdict
from tests.callbacks.models import trainer_of
from tests.callbacks.test_recorder import record_late

BATCH = 4
WINDOW = 5


class Norms(LightningModule):
    """A loss of norms of rows, whose slope at 0 is not defined. No layer computes it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 3, bias=False)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        rows: Tensor = self.body(batch[0])
        return rows.square().sum(1).sqrt().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.0)


class Manual(Norms):
    """Updates after five batches, so that the fault of one is noticed some steps later."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:  # type: ignore[override]
        self.manual_backward(super().training_step(batch, batch_idx) / WINDOW)
        if (batch_idx + 1) % WINDOW == 0:
            optimizer: Any = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()


class Uncalled(Norms):
    """Calls no layer, so that only a second run tells which batch has the fault."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return (batch[0] @ self.body.weight.T).square().sum(1).sqrt().mean()


def recorded(folder: Path, module: Norms, bad: int, **options: Any) -> tuple[FlightRecord, Tensor]:
    """The record of a fit whose batch of a number has a row of 0, and the batch that was saved."""
    torch.manual_seed(0)
    inputs = torch.randn(4 * WINDOW * BATCH, 3)
    inputs[bad * BATCH + 1] = 0
    recorder = FlightRecorder(logdir=folder, **options)
    many = {} if isinstance(module, Manual) else {"accumulate_grad_batches": WINDOW}
    trainer_of(folder, recorder, **many).fit(module, DataLoader(TensorDataset(inputs), BATCH))
    assert recorder.record is not None and recorder.folder is not None
    return recorder.record, load_batch(recorder.folder).value[0]


@pytest.mark.parametrize("at", [0, 2, 4])
def test_the_batch_of_a_window_that_has_the_fault(tmp_path: Path, at: int) -> None:
    record, saved = recorded(tmp_path, Norms(), 2 * WINDOW + at)
    assert (record.verdict, record.step) == (Verdict.BACKWARD, 2)
    assert record.place is not None and record.place.micro_batch == at and record.context["batch_idx"] == 2 * WINDOW + at
    assert record.operation is not None and record.operation.node == "SqrtBackward0"
    assert saved[1].abs().sum() == 0 and not any("sum over" in note for note in record.notes)


def test_on_a_device_no_batch_of_several_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers come one step late, and those of several calls of a layer together."""
    record_late(monkeypatch)
    record, saved = recorded(tmp_path, Norms(), WINDOW + 1)
    assert (record.verdict, record.step, record.context["batch_idx"]) == (Verdict.BACKWARD, 1, 2 * WINDOW - 1)
    assert "in batch" not in record.message and saved.abs().sum(1).min() > 0
    assert record.notes[-1] == "The update reads the sum over 5 batches, and the batch that is kept is the last of them."


@pytest.mark.parametrize("at", [1, 4])
def test_a_fault_that_is_noticed_steps_later(tmp_path: Path, at: int) -> None:
    """Under manual optimization each batch is a step."""
    record, saved = recorded(tmp_path, Manual(), WINDOW + at)
    assert (record.verdict, record.step) == (Verdict.BACKWARD, 2 * WINDOW - 1)
    assert record.place is not None and (record.place.step, record.place.micro_batch) == (WINDOW + at, 0)
    assert record.operation is not None and saved[1].abs().sum() == 0


def test_a_batch_that_was_dropped_is_not_replaced_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_TENSORS", 3)
    recorder = FlightRecorder(logdir=tmp_path)
    inputs = torch.randn(WINDOW * BATCH, 3)
    inputs[1] = 0
    trainer_of(tmp_path, recorder, accumulate_grad_batches=WINDOW).fit(Norms(), DataLoader(TensorDataset(inputs), BATCH))
    record = recorder.record
    assert record is not None and record.operation is None and "batch" not in record.files
    assert "The batch is not kept: those since the last update are kept up to 256 MB and 3 tensors." in record.notes
    assert "The step was not run again: its batch is not kept." in record.notes


def test_a_batch_that_cannot_be_saved_is_not_replaced_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def save(batch: Any, folder: Path) -> Any:
        calls.append(folder)
        if len(calls) > 1:
            raise ValueError("no")
        return save_batch(batch, folder)

    monkeypatch.setattr(record_folder, "save_batch", save)
    record, _ = recorded(tmp_path, Uncalled(), WINDOW + 1)
    assert record.place is not None and record.place.micro_batch == 1 and len(calls) == 2
    assert "batch" not in record.files and "The batch could not be saved: ValueError: no" in record.notes


def test_without_a_second_run_the_last_batch_is_said_to_be_that(tmp_path: Path) -> None:
    record, _ = recorded(tmp_path, Manual(), WINDOW + 1, autopsy=False)
    assert record.operation is None
    assert record.notes[-1] == "The update reads the sum over 5 batches, and the batch that is kept is the last of them."


def test_a_second_run_that_does_not_end_tells_no_batch_from_the_others(tmp_path: Path) -> None:
    record, _ = recorded(tmp_path, Manual(), WINDOW + 1, limit=1e-9)
    assert record.operation is None and any("the step was stopped" in note for note in record.notes)
    assert record.notes[-1] == "The update reads the sum over 5 batches, and the batch that is kept is the last of them."
