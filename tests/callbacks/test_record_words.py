"""What a flight record says of numbers that were bad before the run or the step, or became so after the backward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import FlightRecorder, instrument
from lightning_hooks.engine.plain_loop import recording
from lightning_hooks.engine.recording import starting_numbers, step_numbers
from lightning_hooks.engine.recording.late_recorder import LateRecorder
from lightning_hooks.engine.watching.row_fallback import RowFallback
from lightning_hooks.recorder.record import Verdict
from tests import late_copies
from tests.callbacks.models import trainer_of

pytestmark = pytest.mark.filterwarnings("ignore:matched modules were not called")


@pytest.fixture(params=[False, True], ids=["at once", "late"])
def is_late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the recorder for a device takes the place of that for host memory."""
    if request.param:
        late_copies.install(monkeypatch)
        for module in (step_numbers, starting_numbers):
            monkeypatch.setattr(module, "begin_copy", late_copies.LateCopy)
        monkeypatch.setattr(RowFallback, "note_order", lambda self: None)
        monkeypatch.setattr(
            recording, "recorder_for", lambda observer, share, last, device: LateRecorder(observer, share, last)
        )
    return bool(request.param)


def looped(model: Any, data: list[Any], folder: Path, change: Any = None, make: Any = None, **options: Any) -> Any:
    """The record of a plain loop.

    Args:
        model: gives one number for each sample.
        data: the batches.
        folder: of the record.
        change: called before each update with the number of the step, the model and the optimizer.
        make: makes the optimizer; SGD by default.
        options: of the recorder.
    """
    held = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(held, 1e-3) if make is None else make(held)
    recorder = FlightRecorder(**options)
    with instrument(model, [recorder], optimizer=optimizer, folder=folder) as watched:
        for step, batch in enumerate(data):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            watched.note_loss(loss)
            loss.backward()
            if change is not None:
                change(step, model, optimizer)
            optimizer.step()
    assert recorder.record is not None
    return recorder.record


def lookup(is_frozen: bool = False) -> Any:
    """An embedding with a row of NaN."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.EmbeddingBag(20, 6), nn.Tanh(), nn.Linear(6, 1))
    with torch.no_grad():
        model[0].weight[19] = torch.nan
    model[0].requires_grad_(not is_frozen)
    return model


def tokens(bad: int | None = None) -> list[Tensor]:
    torch.manual_seed(1)
    batches = [torch.randint(0, 19, (5, 3)) for _ in range(5)]
    if bad is not None:
        batches[bad][2, 1] = 19
    return batches


def test_a_row_that_was_bad_before_the_run_is_not_blamed_on_an_update(tmp_path: Path, is_late: bool) -> None:
    record = looped(lookup(), tokens(), tmp_path, make=torch.optim.Adam)
    assert (record.verdict, record.step, record.place.module) == (Verdict.WEIGHTS, 0, "0.weight")
    assert record.message == (
        "0.weight (EmbeddingBag) was not finite before step 0 began. It was not finite when the run began."
    )


def test_a_frozen_row_was_not_finite_after_any_update(tmp_path: Path) -> None:
    record = looped(lookup(is_frozen=True), tokens(bad=3), tmp_path)
    assert (record.verdict, record.step, record.place.module) == (Verdict.WEIGHTS, 3, "0.weight")
    assert record.message.endswith("began. It was not finite when the run began.")


def test_a_frozen_row_is_not_blamed_for_a_bad_update(tmp_path: Path, is_late: bool) -> None:
    """The rate becomes infinite at step 2. The frozen row was bad all along, and no batch looks it up."""

    def change(step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = torch.inf if step == 2 else 1e-3

    record = looped(lookup(is_frozen=True), tokens(), tmp_path, change, autopsy=False)
    assert (record.verdict, record.step, record.place.module) == (Verdict.UPDATE, 2, "2.weight")
    before = "" if is_late else " The parameter was finite after the update of step 1."
    assert (
        record.message == f"The gradients of step 2 are finite. After the optimizer's update, 2.weight (Linear) is not.{before}"
    )


def test_a_row_that_code_wrote_between_two_updates_is_not_said_to_come_from_the_second(tmp_path: Path) -> None:
    def change(step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        if step == 2:
            with torch.no_grad():
                model[0].weight[18:] = torch.nan

    model = lookup()
    nn.init.ones_(model[0].weight)
    record = looped(model, [each.clamp(max=17) for each in tokens()], tmp_path, change)
    assert (record.step, record.place.module, record.reproduced) == (2, "0.weight", False)
    assert "made" not in record.message and "Code between this update" in " ".join(record.notes)


def test_running_statistics_that_were_bad_before_the_run(tmp_path: Path) -> None:
    """A batch norm in evaluation mode has an infinite variance, which one batch divides by nothing."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3).eval(), nn.Linear(3, 1))
    model[1].running_mean[1] = torch.nan
    record = looped(model, [torch.randn(6, 4) for _ in range(2)], tmp_path, autopsy=False)
    assert record.verdict is Verdict.FORWARD and record.place.module == "1"
    assert record.notes[0] == "Not finite when the run began: 1.running_mean."


def test_a_momentum_that_is_not_finite_is_told_from_its_parameter(tmp_path: Path) -> None:
    def change(step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        if step == 3:
            optimizer.state[model[0].weight]["momentum_buffer"][1, 2] = torch.inf

    def made(**options: Any) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        data = [torch.randn(6, 4) for _ in range(5)]
        return looped(model, data, tmp_path, change, lambda held: torch.optim.SGD(held, 1e-3, momentum=0.9), **options)

    shown, noted = made(), made(autopsy=False)
    assert (shown.verdict, shown.place.module, shown.place.tensor) == (Verdict.UPDATE, "0.weight", "state.momentum_buffer")
    assert shown.message == (
        "The gradients of step 3 are finite, and the optimizer's update made 0.weight not finite by momentum_buffer in its "
        "state, which is not finite."
    )
    assert noted.message.startswith(
        "The gradients of step 3 are finite. After the optimizer's update, 0.weight (Linear) is not, nor is momentum_buffer in "
        "its state."
    )


@pytest.mark.parametrize(("kind", "state"), [(torch.optim.Adam, "exp_avg_sq"), (torch.optim.RMSprop, "square_avg")])
def test_an_eps_that_is_0_in_the_format_of_the_parameters(tmp_path: Path, kind: Any, state: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)).half()
    record = looped(model, [torch.full((6, 4), 1e-3).half()], tmp_path, make=kind)
    assert (record.verdict, record.step, record.place.module) == (Verdict.UPDATE, 0, "0.weight")
    assert f"Where its 12 elements are not finite, {state} is 0 for 12, and eps (1e-08) is 0 in float16" in record.message


def test_an_eps_is_not_named_where_something_else_is_infinite(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    record = looped(model, [torch.ones(6, 4)], tmp_path, make=lambda held: torch.optim.Adam(held, lr=torch.inf))
    assert record.verdict is Verdict.UPDATE and "eps" not in record.message


# -- gradients -------------------------------------------------------------------------------------------------------------


def unit(parameters: Any) -> None:
    """Give each gradient a norm of 1, also one of 0."""
    for parameter in parameters:
        parameter.grad.div_(parameter.grad.norm())


def test_a_loop_that_changes_gradients_is_told_that_either_may_be(tmp_path: Path) -> None:
    """The loop changes gradients before the recorder looks at them, and the step does not run again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 1))
    data = [torch.randn(6, 4), torch.zeros(6, 4)]
    record = looped(model, data, tmp_path, lambda step, model, optimizer: unit(model.parameters()))
    assert record.step == 1
    assert record.message == (
        "The loss of step 1 is finite. The gradient of a parameter of 0 (Linear) is not finite when the optimizer reads it: a "
        "backward pass made it so, or code that changed it afterwards, such as clipping."
    )


class Small(LightningModule):
    """A regression without a bias in its first layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv1d(2, 3, 2, bias=False), nn.Linear(3, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return torch.as_tensor(self.last(self.first(batch[0]).tanh().mean(2))).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


class ChangesBeforeClipping(Small):
    def on_after_backward(self) -> None:
        unit(self.parameters())


class ChangesWhileClipping(Small):
    def configure_gradient_clipping(self, *args: Any, **options: Any) -> None:
        unit(self.parameters())


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        (ChangesBeforeClipping, "aten.div_"),
        (ChangesWhileClipping, None),
    ],
)
def test_a_module_that_changes_gradients(tmp_path: Path, kind: type[Small], operation: str | None) -> None:
    inputs = torch.randn(16, 2, 5)
    inputs[8:12] = 0
    recorder = FlightRecorder(logdir=tmp_path)
    trainer_of(tmp_path, recorder).fit(kind(), DataLoader(TensorDataset(inputs), 4))
    record = recorder.record
    assert record is not None and record.verdict is Verdict.GRADIENTS
    assert (None if record.operation is None else record.operation.name) == operation
    assert record.message.startswith("The gradients of step 2 were finite after its backward pass, and that of first.weight")


class Unit(torch.optim.SGD):
    """Divides gradients by their norms, in place."""

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        unit(self.param_groups[0]["params"])
        super().step()
        return loss


class OptimizedBy(Small):
    def __init__(self, kind: type[torch.optim.SGD]) -> None:
        super().__init__()
        self.kind = kind

    def configure_gradient_clipping(self, *args: Any, **options: Any) -> None:
        if self.kind is torch.optim.SGD:
            unit(self.parameters())

    def configure_optimizers(self) -> Any:
        return self.kind(self.parameters(), lr=0.01, maximize=True)


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        (torch.optim.SGD, "was not when the optimizer had read it: code in between, such as clipping, made it so."),
        (Unit, "was not after the step of the optimizer: code in between, such as clipping, or the step itself made it so."),
    ],
    ids=["of torch", "of one's own"],
)
def test_an_optimizer_that_may_write_into_gradients_is_no_code_before_it(tmp_path: Path, kind: Any, end: str) -> None:
    inputs = torch.randn(16, 2, 5)
    inputs[8:12] = 0
    recorder = FlightRecorder(logdir=tmp_path)
    trainer_of(tmp_path, recorder).fit(OptimizedBy(kind), DataLoader(TensorDataset(inputs), 4))
    assert recorder.record is not None and recorder.record.verdict is Verdict.GRADIENTS
    assert recorder.record.message.endswith(end)


class Masked(Small):
    """Leaves out what is missing of the targets, but not of the slope of their loss."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        outputs = self.first(batch[0]).mean((1, 2))
        errors = (outputs - batch[1]).square()
        return torch.where(batch[1].isnan(), 0.0, errors).mean()


def test_a_missing_target_that_reaches_the_gradient_only(tmp_path: Path) -> None:
    targets = torch.randn(16)
    targets[9] = torch.nan
    recorder = FlightRecorder(logdir=tmp_path)
    trainer_of(tmp_path, recorder).fit(Masked(), DataLoader(TensorDataset(torch.randn(16, 2, 5), targets), 4))
    assert recorder.record is not None
    assert recorder.record.message == (
        "The batch of step 2 has elements that are not finite; the loss is finite, and its gradient is not."
    )


class Interrupted(Small):
    """Raises before the backward pass whenever a dispatch mode follows the step."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if torch._C._len_torch_dispatch_stack():
            raise RuntimeError("no second run")
        return loss


def test_a_second_run_that_does_not_end_shows_nothing_of_the_loss(tmp_path: Path) -> None:
    inputs = torch.randn(16, 2, 5)
    inputs[9, 0, 0] = torch.nan
    recorder = FlightRecorder(logdir=tmp_path)
    trainer_of(tmp_path, recorder).fit(Interrupted(), DataLoader(TensorDataset(inputs), 4))
    assert recorder.record is not None
    assert recorder.record.message == "The batch of step 2 has elements that are not finite, and its loss is not finite."


class Powers(Small):
    """A power whose slope at 0 is infinite."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return torch.as_tensor(self.last(self.first(batch[0]).abs().pow(0.3).mean(2))).float().square().mean()


def test_a_power_at_0_under_a_loss_scaler(tmp_path: Path) -> None:
    inputs = torch.randn(64, 2, 5)
    inputs[8::4] = 0
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=512.0))
    recorder = FlightRecorder(logdir=tmp_path)
    trainer_of(tmp_path, recorder, plugins=[precision]).fit(Powers(), DataLoader(TensorDataset(inputs), 4))
    assert recorder.record is not None and recorder.record.verdict is Verdict.BACKWARD
    assert "overflow" not in recorder.record.message
