"""Batches with a fault, which is to be told with its cause."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import HealthMonitor, StatsMonitor
from tests.callbacks.models import trainer_of
from tests.exam._trainings import Batch, Said, cross_entropy, fit, train


def _batches_with_nan(at: int) -> Iterator[Batch]:
    chance = torch.Generator().manual_seed(0)
    for step in range(at + 20):
        x, y = torch.randn(32, 64, generator=chance), torch.randint(10, (32,), generator=chance)
        if step == at:
            x[3, 5] = torch.nan
        yield x, y


class Named(LightningModule):
    """Three linear layers whose modules have these names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
        self.net = nn.Sequential(OrderedDict(zip(names, layers, strict=True)))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return cross_entropy(self.net, *batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


NAMES = ("a", "b", "c", "d", "e"), ("stem", "act", "body", "act2", "fc"), ("encoder", "r", "decoder", "s", "head")


@pytest.mark.parametrize("at", [30, 33])
@pytest.mark.parametrize("names", NAMES, ids="-".join)
def test_nan_in_one_batch_of_a_loop(names: tuple[str, ...], at: int) -> None:
    """One element of one batch is NaN. That batch is the cause, whatever the modules are called."""
    model = Named(*names).net
    said = train(model, torch.optim.Adam(model.parameters(), lr=1e-3), _batches_with_nan(at))
    assert _first_bad_step(said) == at
    assert [cause.name for cause in said.causes] == ["BadBatch"]


@pytest.mark.parametrize("at", [30, 33])
@pytest.mark.parametrize("is_alone", [False, True], ids=["beside a monitor", "alone"])
def test_nan_in_one_batch_of_a_fit(tmp_path: Path, is_alone: bool, at: int) -> None:
    """The same in a fit: a `HealthMonitor` alone, which measures one step in five, names the same batch and step."""
    monitor = HealthMonitor()
    trainer = trainer_of(tmp_path, *([] if is_alone else [StatsMonitor(loggers=[])]), monitor)
    data = DataLoader(list(_batches_with_nan(at)), batch_size=None)  # type: ignore[arg-type]
    said = fit(trainer, monitor, Named(*NAMES[0]), data)
    assert _first_bad_step(said) == at
    assert [cause.name for cause in said.causes] == ["BadBatch"]


def _first_bad_step(said: Said) -> int:
    return min(finding.first_step for finding in said.findings if finding.rule == "NonFinite")


class Classifier(LightningModule):
    """Classifies rows of numbers, or of tokens."""

    def __init__(self, of_tokens: bool) -> None:
        super().__init__()
        self.of_tokens = of_tokens
        self.first = nn.Embedding(50, 16) if of_tokens else nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        hidden = self.first(batch[0])
        return nn.functional.cross_entropy(self.head(hidden.mean(1) if self.of_tokens else hidden.relu()), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("of_tokens", [False, True])
def test_batches_that_come_twice(tmp_path: Path, of_tokens: bool) -> None:
    """Each batch comes twice, because the workers of a stream all read everything. The good run beside it shows that."""

    def run(name: str, seed: int, is_repeated: bool, reference: Path | None = None) -> Said:
        torch.manual_seed(seed)
        x = torch.randint(50, (40, 32, 8)) if of_tokens else torch.randn(40, 32, 8)
        y = torch.randint(4, (40, 32))
        if is_repeated:
            x, y = x.repeat_interleave(2, 0), y.repeat_interleave(2, 0)
        monitor = HealthMonitor(reference=reference)
        trainer = trainer_of(tmp_path, monitor, logger=TensorBoardLogger(str(tmp_path / name), name="", version=""))
        data = DataLoader(TensorDataset(x.flatten(0, 1), y.flatten()), 32)
        return fit(trainer, monitor, Classifier(of_tokens), data)

    assert run("good", 0, False).alarms == []
    said = run("twice", 1, True, tmp_path / "good")
    assert "ReferenceData" in said.names
