"""Trainings as tools make them: an optimizer within backward, weight norms, a teacher beside a student."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import HealthMonitor, check
from lightning_hooks.health.text import as_text, blocks_of
from tests.callbacks.models import trainer_of
from tests.exam._trainings import Batch, cross_entropy, digits, drawn, fit, perceptron, squared_error, train

# -- weight norms ----------------------------------------------------------------------------------------------------------


class Cut(nn.Module):
    """Cuts the graph."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm], ids=["new", "old"])
def test_a_weight_behind_a_weight_norm_is_said_once(norm: Any) -> None:
    """Three layers have two parameters in the place of each weight. A user knows three weights."""
    torch.manual_seed(0)
    layers = [norm(nn.Linear(64, 64, bias=False)) for _ in range(3)]
    model = nn.Sequential(nn.Flatten(), *layers, Cut(), nn.Linear(64, 10))
    said = train(model, torch.optim.Adam(model.parameters(), 1e-3), drawn(digits(), 30, 64))
    (finding,), (cause,) = said.findings, said.causes
    assert finding.message == "1.weight, then 2 more: the optimizer holds it and gets no gradient (since the start)."
    assert cause.message.startswith("No gradient reaches 1.weight, then 2 more: something cuts the graph")
    alone = as_text(block for block in blocks_of([], said.findings)).splitlines()
    assert [line[8:16] for line in alone if "step 0: " in line] == ["1.weight", "2.weight", "3.weight"]
    result = check(model, next(drawn(digits(), 1, 64)), loss=nn.functional.cross_entropy)["NoGradient"]
    assert result.message.startswith("1.weight, 2.weight, 3.weight: no gradient comes in ")


# -- an optimizer within backward ------------------------------------------------------------------------------------------

CONSUMED = "it has no gradient when the optimizer steps, and changes all the same: its gradient is consumed within backward."


def _step_within_backward(model: nn.Module) -> None:
    optimizers = {parameter: torch.optim.Adam([parameter], 1e-3) for parameter in model.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)


@pytest.mark.parametrize(
    ("change", "rule"), [(torch.zeros_like, "ZeroInput"), (lambda x: x + 1e4, "InputNotNormalised")], ids=["zeros", "far"]
)
def test_data_in_front_of_a_weight_norm(change: Any, rule: str) -> None:
    """What computes a weight is no norm of the data, also where the layer reads a single feature."""
    torch.manual_seed(0)
    first = torch.nn.utils.parametrizations.weight_norm(nn.Linear(1, 32))
    model, x = nn.Sequential(first, nn.Sigmoid(), nn.Linear(32, 1)), torch.randn(64, 1)
    data = [(change(x), torch.sin(x))] * 80
    said = train(model, torch.optim.Adam(model.parameters(), 1e-2), data, squared_error)
    assert [each.rows for each in said.findings if each.rule == rule] == [("0",)]
    assert [each.name for each in said.causes] == ["InputOfZeros" if rule == "ZeroInput" else "DataNotNormalised"]


def test_an_optimizer_that_steps_within_backward() -> None:
    """The loop's own optimizer finds no gradient. The weights change all the same, so nobody clears gradients too early."""
    model = perceptron(64, 64, 10)
    _step_within_backward(model)
    said = train(model, torch.optim.SGD(model.parameters(), 1e-3), drawn(digits(), 60, 64))
    assert said.losses[-1] < 0.8 * said.losses[0]
    assert said.alarms == [] and said.causes == []
    assert [each.message for each in said.findings] == [f"1.bias, then 3 more: {CONSUMED}"]


class WithinBackward(LightningModule):
    """Trains with torch's own optimizers within backward, and gives Lightning one that finds nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron(64, 64, 64, 10)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return cross_entropy(self.net, *batch)

    def configure_optimizers(self) -> Any:
        from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward

        _apply_optimizer_in_backward(torch.optim.Adam, self.net.parameters(), {"lr": 1e-3})
        return torch.optim.SGD(self.parameters(), 1e-3)


def test_optimizers_of_torch_within_backward(tmp_path: Path) -> None:
    module, monitor = WithinBackward(), HealthMonitor()
    data = DataLoader(TensorDataset(*digits()), 64, shuffle=True)
    said = fit(trainer_of(tmp_path, monitor, max_epochs=-1, max_steps=60), monitor, module, data)
    assert said.alarms == [] and said.causes == []
    assert [each.rule for each in said.findings] == ["GradientsConsumed"]


# -- a teacher beside a student --------------------------------------------------------------------------------------------


class Distillation(LightningModule):
    """A student of digits beside a frozen teacher with the same names inside, which runs behind it and has other outputs."""

    def __init__(self, labels: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.labels = perceptron(64, 64, 10), perceptron(64, 64, 32), labels
        self.second.requires_grad_(False)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self.first(x)
        hints = self.second(x)[:, :10]
        if self.labels == "shuffled":
            return nn.functional.cross_entropy(logits, y[torch.randperm(len(y))])
        return nn.functional.cross_entropy(logits, y) + nn.functional.mse_loss(logits, hints)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)


@pytest.mark.parametrize("labels", ["right", "shuffled"])
def test_the_loss_is_that_of_the_student(tmp_path: Path, labels: str) -> None:
    """Chance is that of the student's ten outputs, not of the teacher's 32. Of the teacher only its frozen weights are told,
    as the optimizer holds them."""
    module, monitor = Distillation(labels), HealthMonitor()
    data = DataLoader(TensorDataset(*digits()), 64, shuffle=True)
    said = fit(trainer_of(tmp_path, monitor, max_epochs=-1, max_steps=100), monitor, module, data)
    of_teacher = {finding.rule for finding in said.findings for row in finding.rows if row.startswith("second")}
    assert of_teacher == {"FrozenHeld"}
    assert bool(said.alarms) is (labels == "shuffled")
    assert labels == "right" or "10 equal probabilities" in said.words


# -- a recurrence that explodes --------------------------------------------------------------------------------------------


class Recurrence(nn.Module):
    """Reads the rows of an image several times over, with a matrix that makes the state longer at each step."""

    def __init__(self, width: int, gain: float, times: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.state = nn.Parameter(gain * torch.linalg.qr(torch.randn(width, width))[0])
        self.entry, self.head, self.times = nn.Linear(8, width), nn.Linear(width, 10), times

    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(-1, 8, 8).repeat(1, self.times, 1)
        state = self.entry(rows[:, 0])
        for step in range(1, rows.shape[1]):
            state = state @ self.state + self.entry(rows[:, step])
        logits: Tensor = self.head(state)
        return logits


@pytest.mark.parametrize(("width", "gain", "times"), [(16, 1.3, 5), (64, 1.6, 6), (128, 0.98, 10)])
@pytest.mark.parametrize("limit", [None, 1.0], ids=["", "clipped"])
def test_a_recurrence_that_explodes_is_a_divergence(width: int, gain: float, times: int, limit: float | None) -> None:
    """It is told with the rate and the size of the steps, and not as a logarithm of 0. Clipping prevents it."""
    model = Recurrence(width, gain, times)
    clip = None if limit is None else lambda: nn.utils.clip_grad_norm_(model.parameters(), limit)
    said = train(model, torch.optim.SGD(model.parameters(), 0.3), drawn(digits(), 40), before_step=clip)
    if limit is not None:
        assert "NonFinite" not in said.names and said.causes == []
        return
    (cause,) = said.causes
    assert cause.name == "LearningRateTooHigh" and "diverged" in cause.message
    assert "changed the median weight by" in cause.message and "about 0.1 % is usual" in cause.message
    assert "times smaller than 0.3" in cause.message and "logarithm" not in cause.message
