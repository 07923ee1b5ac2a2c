"""Trainings with one fault, which is to be told with its cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.exam._trainings import Said, cross_entropy, digits, drawn, large_digits, last_mean, perceptron, train

CHANCE = 2.302585
"""The cross entropy of ten classes at chance."""

# -- the optimizer and its schedule ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Adam", "SGD"])
@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.5])
def test_a_schedule_of_epochs_that_advances_at_every_step(name: str, gamma: float) -> None:
    """An `ExponentialLR` for epochs advances at every step, until the rate is gone. The finding is to say so."""
    model = perceptron(64, 64, 64, 10)
    options = {"lr": 1e-3} if name == "Adam" else {"lr": 0.1, "momentum": 0.9}
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
    said = train(model, optimizer, drawn(digits(), 140, 64), after_step=schedule.step)
    if gamma == 1.0:
        assert said.alarms == []
    else:
        assert last_mean(said.losses) > 2.0
        assert any("learning rate" in alarm or "schedule" in alarm for alarm in said.alarms)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        (0.01, set()),
        (10.0, {"WeightDecayTooLarge", "WeightDecayDominates"}),
        (11.0, {"WeightDecayTooLarge", "WeightDecayDominates"}),
    ],
)
def test_weight_decay_at_the_threshold(decay: float, expected: set[str]) -> None:
    """AdamW with a rate of 0.001 and a decay of 10 takes exactly 1 % of each weight at each step, which is the limit."""
    model = perceptron(64, 64, 64, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=decay)
    said = train(model, optimizer, drawn(digits(), 60, 64))
    assert said.names == expected


# -- the loss --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "clip"), [("Adam", None), ("Adam", 0.5), ("SGD", None)])
def test_a_flipped_sign_of_the_loss(name: str, clip: float | None) -> None:
    """A cross entropy with a minus sign falls below 0, where none can be. That is to be told within a hundred steps."""
    model = perceptron(64, 64, 64, 10)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3 if name == "Adam" else 0.01)

    def clipped() -> None:
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)

    batches = drawn(digits(), 100, 64)
    said = train(model, optimizer, batches, lambda *given: -cross_entropy(*given), before_step=clipped)
    assert said.losses[-1] < 0
    assert any(word in said.words for word in ("sign", "negative", "below 0"))


@pytest.mark.slow
@pytest.mark.parametrize("clears", [True, False])
def test_gradients_that_are_never_cleared(clears: bool) -> None:
    """A loop without `zero_grad()`, where a ReLU at the output dies of it. With `zero_grad()` only the ReLU is wrong."""
    said = _backbone(1e-3, 120, clears=clears)
    assert ("GradientsNotCleared" in said.names) is not clears
    assert not clears or {each.rule for each in said.findings} == {"ActivationBeforeLoss"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_every_gradient_is_exactly_zero(seed: int) -> None:
    """A rate of 0.1 kills a ReLU at the output: for 60 steps every gradient is 0 and the loss is exactly at chance."""
    said = _backbone(0.1, 100, seed)
    assert said.losses[-60:] == [said.losses[-1]] * 60 and said.losses[-1] == pytest.approx(CHANCE)
    assert said.alarms and "gradient" in said.words
    assert "Healthy:" not in said.told.replace("Not healthy:", "")


class Backbone(nn.Module):
    """Lightning's backbone classifier: `torch.relu`, which is no module, by default also on the logits."""

    def __init__(self, is_rectified: bool = True) -> None:
        super().__init__()
        self.first, self.second, self.is_rectified = nn.Linear(784, 128), nn.Linear(128, 10), is_rectified

    def forward(self, x: Tensor) -> Tensor:
        logits = self.second(torch.relu(self.first(x.flatten(1))))
        return torch.relu(logits) if self.is_rectified else logits


def _backbone(rate: float, steps: int, seed: int = 0, *, clears: bool = True) -> Said:
    torch.manual_seed(seed)
    model = Backbone()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    return train(model, optimizer, drawn(large_digits(), steps, seed=seed), clears=clears)


@pytest.mark.slow
def test_shuffled_labels() -> None:
    """Labels do not belong to the inputs, so the loss stays at chance for 200 steps."""
    torch.manual_seed(0)
    model = Backbone(is_rectified=False)
    batches = ((x, y[torch.randperm(len(y))]) for x, y in drawn(large_digits(), 200))
    said = train(model, torch.optim.Adam(model.parameters(), lr=1e-3), batches)
    assert last_mean(said.losses) == pytest.approx(CHANCE, rel=0.01)
    assert "chance" in said.words or "labels" in said.words
    assert "Healthy:" not in said.told.replace("Not healthy:", "")


# -- gradients that do not come --------------------------------------------------------------------------------------------


def test_gradients_cleared_between_backward_and_step() -> None:
    """`zero_grad()` stands between `backward()` and `step()`. The graph is whole; no parameter has a gradient at the step."""
    model = perceptron(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = [(torch.randn(32, 64), torch.randint(10, (32,))) for _ in range(30)]
    said = train(model, optimizer, batches, before_step=optimizer.zero_grad)
    assert said.alarms and "GradientCut" not in said.names
    assert "clear" in said.words or "zero_grad" in said.words


class Rows(nn.Module):
    """A layer that reads images row by row, and a head at the last row."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.is_recurrent = issubclass(kind, nn.RNNBase)
        self.first = kind(28, 32, batch_first=True) if self.is_recurrent else kind(28, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)[0] if self.is_recurrent else self.first(x)
        return self.head(torch.tanh(hidden[:, -1]))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, nn.Linear])
def test_inputs_that_are_all_zero(kind: type[nn.Module]) -> None:
    """All inputs of all batches are 0. Neither is the graph cut nor does one batch differ from the others."""
    torch.manual_seed(0)
    model = Rows(kind)
    batches = [(torch.zeros(32, 28, 28), torch.randint(10, (32,))) for _ in range(40)]
    said = train(model, torch.optim.Adam(model.parameters(), lr=1e-3), batches)
    assert said.names.isdisjoint({"GradientCut", "BadBatch"})
    assert "input" in said.words and "0" in said.words


# -- dropout ---------------------------------------------------------------------------------------------------------------


class Own(nn.Module):
    """A linear layer of one's own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(inputs, outputs))
        nn.init.xavier_normal_(self.kernel)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kernel


class Functional(nn.Module):
    """Dropout by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(torch.relu(self.first(x.flatten(1))), 0.95, self.training))


class Recurrent(nn.Module):
    """Dropout by an argument of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 32, 2, batch_first=True, dropout=0.95), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.squeeze(1))[0][:, -1])


def _with_dropout(first: nn.Module, head: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Dropout(0.95), head)


NETS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: _with_dropout(nn.Linear(64, 64), nn.Linear(64, 10)),
    "a layer of one's own": lambda: _with_dropout(Own(64, 64), Own(64, 10)),
    "a function": Functional,
    "an argument": Recurrent,
}


@pytest.mark.parametrize("net", NETS)
def test_a_dropout_of_almost_everything(net: str) -> None:
    """A dropout of 0.95 hides nearly all of a hidden layer, whichever way it is written."""
    torch.manual_seed(0)
    model = NETS[net]()
    said = train(model, torch.optim.Adam(model.parameters(), lr=1e-3), drawn(digits(), 60, 64))
    assert "DropoutTooHigh" in said.names
