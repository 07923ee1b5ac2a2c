"""The sentences of a flight record, of which none may be false."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import FlightRecorder, StatsMonitor, instrument
from lightning_hooks.cli.main import main
from lightning_hooks.recorder.record import FlightRecord, Verdict
from tests.callbacks.models import trainer_of
from tests.exam._trainings import Batch

# A recorder warns of modules that a step does not call, which is another matter.
pytestmark = pytest.mark.filterwarnings("ignore:matched modules were not called")


class Log(nn.Module):
    """The logarithm of the magnitude."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().log()


class Root(nn.Module):
    """The root of the magnitude, whose slope at 0 is infinite."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().sqrt()


class Fit(LightningModule):
    """A regression by SGD."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]).float().squeeze(-1), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)


def recorded(folder: Path, module: LightningModule, *data: Tensor, **options: Any) -> FlightRecord:
    """The flight record of a fit in batches of eight samples."""
    recorder = FlightRecorder(logdir=folder, **options.pop("recorder", {}))
    trainer_of(folder, recorder, **options).fit(module, DataLoader(TensorDataset(*data), 8))
    assert recorder.record is not None
    return recorder.record


def rooted(kind: type[nn.Module]) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(8, 8, bias=False), kind(), nn.Linear(8, 1)]


def inputs(samples: int = 48, zero: slice | int | None = None) -> Tensor:
    torch.manual_seed(0)
    x = torch.randn(samples, 8)
    if zero is not None:
        x[zero] = 0
    return x


# -- a loss that the recorder does not see ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_loop_without_note_loss(tmp_path: Path, is_noted: bool) -> None:
    """A logarithm of 0 in the forward pass of a plain loop that does not note its loss, as in the README."""
    model = nn.Sequential(*rooted(Log))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with instrument(model, [StatsMonitor(), recorder := FlightRecorder()], optimizer=optimizer, folder=tmp_path) as watched:
        for step in range(5):
            x, y = torch.randn(8, 8), torch.randn(8)
            if step == 3:
                x[2] = 0
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
            if is_noted:
                watched.note_loss(loss)
            loss.backward()
            optimizer.step()
    _assert_is_the_forward_of(recorder.record, "1")


class Manual(Fit):
    """Manual optimization with `loss.backward()`, where Lightning asks for `self.manual_backward(loss)`."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> None:  # type: ignore[override]
        optimizer = self.optimizers()
        optimizer.zero_grad()
        super().training_step(batch, batch_idx).backward()
        optimizer.step()


@pytest.mark.parametrize("autopsy", [True, False])
def test_a_loss_whose_backward_is_not_lightnings(tmp_path: Path, autopsy: bool) -> None:
    """A logarithm of 0 in the forward pass of a fit that calls `loss.backward()` itself."""
    record = recorded(tmp_path, Manual(*rooted(Log)), inputs(zero=26), torch.randn(48), recorder={"autopsy": autopsy})
    _assert_is_the_forward_of(record, "net.1")


def _assert_is_the_forward_of(record: FlightRecord | None, module: str) -> None:
    assert record is not None
    assert "The loss of step 3 is finite" not in record.message
    assert (record.verdict, record.place.module) == (Verdict.FORWARD, module)


# -- what was bad before the step ------------------------------------------------------------------------------------------


class Weighted(Fit):
    """A classifier whose fourth class has a weight of 1/0."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 4))
        self.criterion = nn.CrossEntropyLoss(weight=1 / torch.tensor([10.0, 12.0, 9.0, 0.0]))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.criterion(self.net(batch[0]), batch[1])


def test_a_buffer_that_was_infinite_from_the_start(tmp_path: Path) -> None:
    """The weight of a class is infinite from the start; the class first comes at step 3."""
    y = torch.arange(48) % 3
    y[28] = 3
    record = recorded(tmp_path, Weighted(), inputs(), y)
    assert (record.verdict, record.place.module) == (Verdict.WEIGHTS, "criterion.weight")
    assert "finite after the update" not in record.message


def test_a_parameter_that_was_bad_before_the_first_step(tmp_path: Path) -> None:
    """A checkpoint has a row of NaN in an embedding, which the first batches do not look up. The update did not write it."""
    torch.manual_seed(0)
    module = Fit(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(32, 1))
    with torch.no_grad():
        module.net[0].weight[37] = torch.nan
    record = recorded(tmp_path, module, torch.randint(0, 37, (48, 4)), torch.randn(48))
    assert record.verdict is Verdict.WEIGHTS
    assert "the optimizer's update made" not in record.message


class Damaged(Fit):
    """The state of Adam gets a NaN before step 2."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        if batch_idx == 2:
            self.trainer.optimizers[0].state[self.net[0].bias]["exp_avg"][3] = torch.nan


def test_the_state_of_an_optimizer(tmp_path: Path) -> None:
    """A NaN stands in `exp_avg` of a parameter that is itself finite, as after a damaged checkpoint."""
    torch.manual_seed(0)
    module = Damaged(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    record = recorded(tmp_path, module, inputs(), torch.randn(48))
    assert "exp_avg" in record.message
    assert "net.0.bias was not finite" not in record.message


# -- the backward pass -----------------------------------------------------------------------------------------------------


class Normalising(Fit):
    """Divides gradients by their norm, which may be 0."""

    def configure_gradient_clipping(self, *args: Any, **options: Any) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(parameter.grad.norm())


def test_a_gradient_that_the_user_changes(tmp_path: Path) -> None:
    """The user's clipping divides by a norm of 0. The gradients of the backward pass are finite."""
    torch.manual_seed(0)
    module = Normalising(nn.Linear(8, 8, bias=False), nn.Linear(8, 1))
    record = recorded(tmp_path, module, inputs(zero=slice(24, 32)), torch.randn(48))
    assert record.step == 3
    assert "In its backward pass" not in record.message


class IgnoringNaN(Fit):
    """A mean that ignores NaN, of which the gradient does not."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return ((self.net(batch[0]).squeeze(-1) - batch[1]) ** 2).nanmean()


def test_a_bad_target_that_the_loss_ignores(tmp_path: Path) -> None:
    """One target is NaN, and `nanmean` ignores it: the loss is finite, and its gradient is not."""
    y = torch.randn(48)
    y[26] = torch.nan
    record = recorded(tmp_path, IgnoringNaN(nn.Linear(8, 1)), inputs(), y)
    assert record.step == 3
    assert "reached the loss" not in record.message


def test_a_fault_in_an_earlier_micro_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The slope of a root is infinite in the third of four micro-batches. The record names it, and a replay repeats it."""
    recorder = FlightRecorder(logdir=tmp_path, weights=True)
    trainer = trainer_of(tmp_path, recorder, accumulate_grad_batches=4)
    data = TensorDataset(inputs(96, zero=6 * 8 + 2), torch.randn(96))
    trainer.fit(Rooted(), DataLoader(data, 8))
    record = recorder.record
    assert record is not None and record.verdict is Verdict.BACKWARD
    assert record.operation is not None and record.place.module == "net.1"
    assert main(["replay", str(recorder.folder), "--module", f"{__name__}.Rooted"]) == 0
    assert "not_reproduced" not in capsys.readouterr().out


class Rooted(Fit):
    """A regression through a root, which a replay can make again."""

    def __init__(self) -> None:
        super().__init__(*rooted(Root))


def test_a_slope_that_is_infinite_at_any_scale(tmp_path: Path) -> None:
    """In float16 with a loss scaler, the slope of a root at 0 is infinite at any loss scale: no overflow."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10000)
    precision = MixedPrecision("16-mixed", "cpu", scaler)
    x = inputs(96, zero=slice(18, None, 8))
    record = recorded(tmp_path, Rooted(), x, torch.randn(96), plugins=[precision])
    assert (record.verdict, record.place.module) == (Verdict.BACKWARD, "net.1")
    assert "overflow" not in record.message
