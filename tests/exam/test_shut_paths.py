"""Trainings in which a part does nothing while the loss falls, and healthy ones whose parts begin so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.exam._trainings import Batch, Said, digits, drawn, perceptron, squared_error, train


class Residual(nn.Module):
    """A branch that is added to a stream."""

    def __init__(self, gate: nn.Parameter | float = 1.0, starts_at_zero: bool = False, shift: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(64, 32), nn.Linear(32, 10)
        self.branch = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 32))
        self.gate, self.shift = gate, shift
        if starts_at_zero:
            nn.init.zeros_(self.branch[2].weight)
            nn.init.zeros_(self.branch[2].bias)

    def forward(self, x: Tensor) -> Tensor:
        stream = torch.relu(self.stem(x.flatten(1)))
        added = self.branch(stream)
        return self.head(stream + self.gate * (torch.relu(added - self.shift) if self.shift else added))


class TwoSides(nn.Module):
    """Two convolutions side by side, the second of which ends in a rectifier whose inputs begin this far below 0."""

    def __init__(self, below: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = (nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU()) for _ in range(2))
        nn.init.constant_(self.right[0].bias, -below)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.left(x), self.right(x)], 1).mean((2, 3)))


class Adapted(nn.Module):
    """A frozen layer with a low-rank addition whose second matrix begins at zero."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base, self.down, self.up = nn.Linear(64, 48), nn.Linear(64, 4, bias=False), nn.Linear(4, 48, bias=False)
        self.base.requires_grad_(False)
        nn.init.zeros_(self.up.weight)
        self.scale, self.head = scale, nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.head(torch.relu(self.base(x) + self.scale * self.up(self.down(x))))


def _gate(trains: bool) -> nn.Parameter:
    return nn.Parameter(torch.zeros(()), requires_grad=trains)


def _trained(model: nn.Module, without_rate: int = 0, steps: int = 40) -> Said:
    optimizer = torch.optim.Adam((each for each in model.parameters() if each.requires_grad), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step >= without_rate))
    return train(model, optimizer, drawn(digits(), steps, 64), after_step=schedule.step)


@pytest.mark.parametrize(
    ("model", "rows", "cause"),
    [
        (lambda: Residual(0.0), {"branch.0.weight", "branch.2.weight"}, "PathShut"),
        (lambda: Residual(_gate(False)), {"branch.0.weight", "branch.2.weight"}, "PathShut"),
        (lambda: Residual(shift=100.0), {"branch.0.weight", "branch.2.weight"}, "PathShut"),
        (lambda: Residual(_gate(True), starts_at_zero=True), {"branch.0.weight", "branch.2.weight"}, "InitializationTooSmall"),
        (lambda: Adapted(0.0), {"down.weight", "up.weight"}, "InitializationTooSmall"),
        (lambda: TwoSides(100.0), {"right.0.weight"}, "ActivationsDead"),
    ],
    ids=["factor 0", "frozen gate", "rectifier by function", "two zeros", "scale 0", "rectifier"],
)
def test_a_path_that_is_shut(model, rows: set[str], cause: str) -> None:
    """A gradient of exactly 0 arrives at the path for ten updates after the first. Nothing is cut."""
    said = _trained(model())
    (finding,) = (each for each in said.findings if each.rule == "NoGradient")
    assert set(finding.rows) == rows and finding.severity == "warning" and finding.first_step == 0
    assert finding.message.endswith("its gradient is exactly 0, because so is that of its module's output (since the start).")
    assert {each.name for each in said.causes} == {cause}


HEALTHY = {
    "open": Residual,
    "ReZero": lambda: Residual(_gate(True)),
    "a branch that starts at zero": lambda: Residual(starts_at_zero=True),
    "LoRA": lambda: Adapted(2.0),
    "two sides": lambda: TwoSides(0.0),
    "a head of zeros": lambda: _with_head_of_zeros(),
}


def _with_head_of_zeros() -> nn.Module:
    model = perceptron(64, 32, 10)
    nn.init.zeros_(model[-1].weight)
    nn.init.constant_(model[-1].bias, -4.6)
    return model


@pytest.mark.parametrize("without_rate", [0, 25])
@pytest.mark.parametrize("model", HEALTHY)
def test_what_starts_at_zero_is_no_path_that_is_shut(model: str, without_rate: int) -> None:
    """The first update opens the path, however long the learning rate is 0 before it."""
    said = _trained(HEALTHY[model](), without_rate)
    assert {each.rule for each in said.findings if each.severity != "info"} <= {"LearningRateZero"}
    assert without_rate or said.alarms == []


def _far_targets(x: Tensor, y: Tensor) -> Batch:
    return x, 20 + torch.randn(len(y), 3, generator=torch.Generator().manual_seed(int(y.sum())))


OUTPUTS = {
    "saturated": lambda: nn.Sequential(nn.Flatten(), _shifted(64, 32, 50.0), nn.Tanh(), nn.Linear(32, 3)),
    "dead": lambda: nn.Sequential(nn.Flatten(), _shifted(64, 32, -50.0), nn.ReLU(), nn.Linear(32, 3)),
    "varied": lambda: nn.Sequential(nn.Flatten(), _shifted(64, 32, 0.0), nn.Tanh(), nn.Linear(32, 3)),
}


def _shifted(inputs: int, outputs: int, bias: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.constant_(layer.bias, bias)
    return layer


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("name", OUTPUTS)
def test_all_outputs_are_equal_while_the_loss_falls(name: str, repeats: bool) -> None:
    """The bias of the head learns the mean of the targets, so that the loss falls by far."""
    torch.manual_seed(0)
    model = OUTPUTS[name]()
    batches = (_far_targets(x[:1].expand_as(x) if repeats else x, y) for x, y in drawn(digits(), 60, 64))
    said = train(model, torch.optim.SGD(model.parameters(), lr=0.02 if name == "dead" else 0.003), batches, squared_error)
    assert said.losses[-1] < said.losses[0] / 2
    messages = [each.message for each in said.findings if each.rule == "ConstantOutput" and each.severity == "warning"]
    assert len(messages) == (name != "varied" or repeats)
    assert all(
        each.startswith(("3: ", "0, ", "2, ")) and "every sample gets exactly the same output" in each for each in messages
    )
