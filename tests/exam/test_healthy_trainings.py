"""Healthy trainings, of which nothing above `info` may be said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import HealthMonitor
from tests.callbacks.models import trainer_of
from tests.exam._trainings import Batch, digits, drawn, fit, last_mean, perceptron, squared_error, train

# -- inputs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_raw_pixels_before_a_batch_norm(scale: float) -> None:
    """Digits enter a convolution without bias and a batch norm, which removes the scale of the pixels. Nothing is wrong."""
    torch.manual_seed(0)
    stem = [nn.Conv2d(1, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    body = [nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)]
    model = nn.Sequential(*stem, *body)
    images, labels = digits()
    said = train(model, torch.optim.Adadelta(model.parameters(), lr=1.0), drawn((scale * images, labels), 60))
    assert last_mean(said.losses, 10) < 0.5
    assert said.alarms == []


# -- gradients that grow ---------------------------------------------------------------------------------------------------


class GraphConvolution(nn.Module):
    """A matrix, and the mean over the neighbours."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(inputs, outputs))
        nn.init.xavier_normal_(self.kernel)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        return neighbours @ (x @ self.kernel)


class GraphNetwork(nn.Module):
    """Two graph convolutions with dropout, as in pytorch/examples."""

    def __init__(self, features: int, classes: int, neighbours: Tensor) -> None:
        super().__init__()
        self.first, self.second = GraphConvolution(features, 16), GraphConvolution(16, classes)
        self.dropout, self.neighbours = nn.Dropout(0.5), neighbours

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.dropout(torch.relu(self.first(x, self.neighbours))), self.neighbours)


def bags_of_words(samples: int, words: int, shares: list[float], own: int, chance: torch.Generator) -> Batch:
    """Rows that sum to 1: `own` draws among 50 words of the class, twelve among all of 400."""
    labels = torch.multinomial(torch.tensor(shares), samples, True, generator=chance)
    rows = torch.zeros(samples, words)
    for row, label in zip(rows, labels, strict=True):
        of_class = label * 50 + torch.randint(50, (own,), generator=chance)
        row[torch.cat([of_class, torch.randint(words, (12,), generator=chance)])] = 1
    return rows / rows.sum(1, keepdim=True), labels


@pytest.mark.slow
@pytest.mark.parametrize(
    "shares",
    [
        pytest.param([1.0] * 7, id="balanced"),
        pytest.param([6.0] + [0.67] * 6, id="one of 60 %"),
        pytest.param([0.57, 0.43], id="two of seven"),
    ],
)
def test_full_batches_of_a_graph(shares: list[float]) -> None:
    """A graph network leaves its small start in one direction, if classes are unbalanced. The loop clears all gradients."""
    chance = torch.Generator().manual_seed(0)
    x, y = bags_of_words(600, 400, shares, 6, chance)
    edges = torch.rand(600, 600, generator=chance) < 0.004
    edges |= (torch.rand(600, 600, generator=chance) < 0.02) & (y[:, None] == y[None])
    matrix = (edges | edges.T).float().fill_diagonal_(1)
    scale = matrix.sum(1).rsqrt()
    torch.manual_seed(0)
    model = GraphNetwork(400, 7, scale[:, None] * matrix * scale)
    said = train(model, torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4), [(x, y)] * 80)
    assert said.losses[-1] < 0.8 * said.losses[0]
    assert said.alarms == [] and said.causes == []


@pytest.mark.parametrize(
    ("size", "shares"),
    [
        pytest.param(64, [1.0] * 7, id="64, balanced"),
        pytest.param(64, [9.0] + [0.17] * 6, id="64, one of 90 %"),
        pytest.param(2000, [1.0] * 7, id="all, balanced"),
    ],
)
def test_bags_of_words(size: int, shares: list[float]) -> None:
    """A perceptron classifies bags of words, in mini-batches or all at once. The loop clears all gradients."""
    chance = torch.Generator().manual_seed(0)
    data = bags_of_words(2000, 400, shares, 8, chance)
    model = perceptron(400, 64, 7, bias=False)
    batches = _mini_batches(data, 80, size, chance) if size < 2000 else [data] * 80
    said = train(model, torch.optim.Adam(model.parameters(), lr=0.01), batches)
    assert said.losses[-1] < 0.8 * said.losses[0]
    assert said.alarms == [] and said.causes == []


def _mini_batches(data: Batch, steps: int, size: int, chance: torch.Generator) -> Iterator[Batch]:
    for _ in range(steps):
        chosen = torch.randint(len(data[0]), (size,), generator=chance)
        yield data[0][chosen], data[1][chosen]


# -- units -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 24])
def test_a_depthwise_convolution_behind_dead_channels(groups: int) -> None:
    """A quarter of the channels of a ReLU is off, and training is fine. With 24 groups the next layer inherits these zeros."""
    torch.manual_seed(0)
    before = [nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()]
    depthwise = [nn.Conv2d(24, 24, 3, padding=1, groups=groups, bias=False), nn.BatchNorm2d(24)]
    behind = [nn.Conv2d(24, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
    model = nn.Sequential(*before, *depthwise, *behind, nn.Flatten(), nn.Linear(96, 10))
    nn.init.constant_(before[1].bias[:6], -20.0)  # type: ignore[index]
    said = train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), drawn(digits(), 60))
    assert last_mean(said.losses, 10) < 0.5 * said.losses[0]
    assert said.alarms == []


# -- losses ----------------------------------------------------------------------------------------------------------------


class NoisyRegression(LightningModule):
    """A regression of random targets from 0 to 3."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]).squeeze(-1), batch[1].float())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)


@pytest.mark.parametrize(("size", "seed"), [(1, 12), (2, 28), (4, 12), (4, 28)])
def test_losses_of_tiny_batches(tmp_path: Path, size: int, seed: int) -> None:
    """Batches of one or two samples have losses that vary a hundredfold; the training is healthy."""
    torch.manual_seed(seed)
    module, monitor = NoisyRegression(), HealthMonitor()
    data = DataLoader(TensorDataset(torch.randn(160, 16), torch.randint(4, (160,))), size)
    said = fit(trainer_of(tmp_path, monitor, max_epochs=-1, max_steps=40), monitor, module, data)
    assert said.alarms == []


# -- a head that starts where its targets are, and an optimizer of signs ---------------------------------------------------


def _waves(scale: float, mean: float) -> Batch:
    chance = torch.Generator().manual_seed(1)
    x = torch.randn(256, 6, generator=chance)
    return x, mean + scale * torch.sin(2 * x[:, :1]) * x[:, 1:2]


def test_a_bias_that_starts_at_the_mean_of_distant_targets() -> None:
    data = _waves(1.0, 1000.0)
    model = perceptron(6, 32, 32, 1)
    nn.init.constant_(model[-1].bias, 1000.0)  # type: ignore[arg-type]
    said = train(model, torch.optim.Adam(model.parameters(), 3e-3), drawn(data, 100, 64), squared_error)
    assert last_mean(said.losses) < 0.8 * said.losses[0]
    assert said.alarms == []


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_rprop_on_full_batches_of_small_and_large_targets(scale: float) -> None:
    model = perceptron(6, 32, 32, 1)
    said = train(model, torch.optim.Rprop(model.parameters(), 1e-2), [_waves(scale, 0.0)] * 120, squared_error)
    assert last_mean(said.losses) < 0.1 * said.losses[0]
    assert said.alarms == []
