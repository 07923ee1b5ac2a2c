"""With health rules, the loss and the norm of the whole gradient are read at every step, whatever the interval of the rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import (
    Apply,
    FlightRecorder,
    GradientTransforms,
    HealthMonitor,
    StatsMonitor,
    StepConsumer,
    StepView,
    instrument,
)
from lightning_hooks.records.consumer import EveryStepConsumer
from lightning_hooks.transforms import ClipByGlobalNorm
from tests.callbacks.models import Gan, Net, data, trainer_of
from tests.conformance.test_tensor_kinds import MAKES

NORM = "run/grad_norm"


class Views(StepConsumer):
    """Keeps the views that it gets, by step."""

    def __init__(self) -> None:
        self.kept: dict[int, StepView] = {}

    def consume(self, view: StepView) -> None:
        self.kept[view.step] = view


class AllViews(Views, EveryStepConsumer):
    """Also keeps those between the steps of rows."""


def norm_of(parameters: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(each.grad.double().square().sum()) for each in parameters if each.grad is not None))


def monitors() -> tuple[Views, AllViews, list[Any]]:
    views, every = Views(), AllViews()
    return views, every, [StatsMonitor(every_n_steps=5, consumers=[views, every], loggers=[]), HealthMonitor()]


def assert_same(every: AllViews, norms: list[float], losses: list[float] | None = None) -> None:
    assert [*every.kept] == [*range(len(norms))]
    summaries = [view.summaries for view in every.kept.values()]
    assert [each[NORM] for each in summaries] == pytest.approx(norms, rel=1e-5)
    if losses is not None:
        assert [each["run/loss"] for each in summaries] == pytest.approx(losses, rel=1e-5)
    assert all(each["run/nonfinite"] == 0 for each in summaries)


def test_a_plain_loop() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    frozen = model[0].bias
    assert frozen is not None
    frozen.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    views, every, callbacks = monitors()
    norms, losses = [], []
    with instrument(model, callbacks, optimizer=optimizer) as watched:
        for _ in range(12):
            optimizer.zero_grad()
            loss = model(torch.randn(3, 4)).square().mean()
            watched.note_loss(loss)
            loss.backward()
            norms.append(norm_of(model.parameters()))
            losses.append(loss.item())
            optimizer.step()
    assert_same(every, norms, losses)
    assert [*views.kept] == [4, 9]
    assert [step for step, view in every.kept.items() if not view.is_between] == [4, 9]
    assert all(view.stat("grad", "norm").measured.any() != view.is_between for view in every.kept.values())


class Noted(Net):
    """Notes the norm of its gradients before each step."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.norms: list[float] = []

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.norms.append(norm_of(self.parameters()))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_fit(tmp_path: Path, accumulate: int) -> None:
    views, every, callbacks = monitors()
    model = Noted()
    trainer_of(tmp_path, *callbacks, accumulate_grad_batches=accumulate).fit(model, data(12 * accumulate))
    assert_same(every, model.norms)
    assert [*views.kept] == [4, 9]


def test_a_fit_with_a_loss_scaler(tmp_path: Path) -> None:
    _, every, callbacks = monitors()
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    model = Noted()
    trainer_of(tmp_path, *callbacks, plugins=plugin).fit(model, data(12))
    assert_same(every, model.norms)


class Two(LightningModule):
    """Steps two optimizers in each batch, by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 1)
        self.squares: dict[int, float] = {}

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        x = torch.randn(3, 4)
        squared = 0.0
        for module, optimizer in zip((self.first, self.second), self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(module(x).square().mean())
            squared += norm_of(module.parameters()) ** 2
            optimizer.step()
        self.squares[batch_idx] = squared

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(each.parameters(), lr=0.1) for each in (self.first, self.second)]


def test_several_optimizers_by_hand(tmp_path: Path) -> None:
    """The global step of Lightning counts the steps of optimizers, so every second number is that of a batch."""
    _, every, callbacks = monitors()
    model = Two()
    trainer_of(tmp_path, *callbacks).fit(model, data(12))
    norms = [view.summaries[NORM] for view in every.kept.values()]
    assert norms == pytest.approx([math.sqrt(each) for each in model.squares.values()], rel=1e-5)


def test_transforms_report_as_without_health_rules(tmp_path: Path) -> None:
    """The reports of transforms stay in the views of the steps at which rows are measured."""
    found = []
    for health in ([], [HealthMonitor()]):
        views = Views()
        transforms = GradientTransforms([Apply(ClipByGlobalNorm(1e-3), params="*")])
        callbacks = [transforms, StatsMonitor(every_n_steps=5, consumers=[views], loggers=[]), *health]
        torch.manual_seed(0)
        trainer_of(tmp_path, *callbacks).fit(Net(), data(12))
        found.append({step: dict(view.summaries) for step, view in views.kept.items()})
    assert [*found[0]] == [*found[1]] == [4, 9]
    for step, plain in found[0].items():
        assert {tag: found[1][step][tag] for tag in plain if tag != "run/overhead"} == {
            tag: value for tag, value in plain.items() if tag != "run/overhead"
        }


class Given(Net):
    """Gets batches that it does not read."""

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return batch

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step((torch.randn(3, 6), torch.randn(3, 3)), batch_idx)


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("make", [HealthMonitor, FlightRecorder])
def test_a_batch_that_refuses_operations_does_not_end_a_fit(tmp_path: Path, kind: str, make: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = [{"x": MAKES[kind](torch.ones(3, 4))} for _ in range(3)]
        trainer = trainer_of(tmp_path, make())
        trainer.fit(Given(), DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    assert trainer.global_step == 3
    # The subclass that refuses only functions can be read all the same.
    said = any("is not measured" in str(each.message) for each in caught)
    assert said == (make is HealthMonitor and kind != "Refusing")
    assert not any("stopped watching" in str(each.message) for each in caught)


def test_a_gan_is_read_at_every_step(tmp_path: Path) -> None:
    _, every, callbacks = monitors()
    trainer_of(tmp_path, *callbacks).fit(Gan(), data(6))
    assert all(view.summaries[NORM] > 0 for view in every.kept.values()) and len(every.kept) == 6
