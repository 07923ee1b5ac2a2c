"""Healthy trainings that predict numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.distributions import StudentT
from torch.nn import functional

from galleries.health.faulty_parts import Learner, Regressor, adamw, loader, sgd, stack, waves
from galleries.health.training import Case, Training


def large_targets(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, targets = waves(seed)
    return Case(Regressor(adamw(2e-2), depth=3), loader(inputs, 1000 * targets, seed=seed, batch=64))


class Poisson(Regressor):
    """Predicts the logarithm of the rate of a count."""

    def loss(self, batch: Any) -> Tensor:
        inputs, counts = batch
        return functional.poisson_nll_loss(self(inputs), counts, log_input=True)


def poisson(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, logarithms = waves(seed)
    counts = torch.poisson((1.5 + logarithms).exp(), generator=Generator().manual_seed(seed))
    return Case(Poisson(adamw(2e-3), activation=nn.SiLU), loader(inputs, counts, seed=seed, batch=64))


class Sine(nn.Module):
    """A layer of a SIREN: the sine of thirty times a linear layer."""

    def __init__(self, inputs: int, outputs: int, first: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        bound = 1 / inputs if first else math.sqrt(6 / inputs) / 30
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.sin(30 * self.linear(inputs))


class Siren(Learner):
    """Represents an image as a function of the coordinates of its pixels."""

    def __init__(self) -> None:
        super().__init__(adamw(3e-4, weight_decay=0.0))
        self.net = nn.Sequential(Sine(2, 64, first=True), Sine(64, 64), Sine(64, 64), nn.Linear(64, 1))
        nn.init.uniform_(self.net[3].weight, -math.sqrt(6 / 64) / 30, math.sqrt(6 / 64) / 30)

    def loss(self, batch: Any) -> Tensor:
        points, values = batch
        return functional.mse_loss(self.net(points), values)


def siren(seed: int) -> Case:
    torch.manual_seed(seed)
    axis = torch.linspace(-1, 1, 32)
    points = torch.cartesian_prod(axis, axis)
    frequencies = 4 * torch.randn(2, 4, generator=Generator().manual_seed(seed))
    values = torch.sin(points @ frequencies).mean(1, keepdim=True)
    return Case(Siren(), loader(points, values, seed=seed, batch=512))


class MultiTask(Learner):
    """Learns two tasks. A third head belongs to a task of which this data has no targets."""

    def __init__(self) -> None:
        super().__init__(adamw(2e-3))
        self.trunk = stack(8, 64, 3)
        self.heads = nn.ModuleDict({name: nn.Linear(64, size) for name, size in (("value", 1), ("sign", 2), ("depth", 4))})

    def loss(self, batch: Any) -> Tensor:
        inputs, targets = batch
        hidden = self.trunk(inputs)
        value = functional.mse_loss(self.heads["value"](hidden), targets)
        sign = functional.cross_entropy(self.heads["sign"](hidden), (targets[:, 0] > 0).long())
        return value + 0.5 * sign


def multi_task(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(MultiTask(), loader(*waves(seed), seed=seed))


class Huber(Regressor):
    """Predicts targets with outliers, robustly."""

    def loss(self, batch: Any) -> Tensor:
        inputs, targets = batch
        return functional.huber_loss(self(inputs), targets)


def outliers(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, targets = waves(seed)
    noise = StudentT(1.5).sample(targets.shape)
    return Case(Huber(sgd(0.1, momentum=0.9)), loader(inputs, targets + 0.2 * noise, seed=seed, batch=64))


TRAININGS = [
    Training("regression-large-targets", "regression", large_targets, 400, "held", None, "Targets are of the order of 1000."),
    Training("regression-poisson", "regression", poisson, 300, "set", None, "Counts are learned by the likelihood of Poisson."),
    Training("siren", "regression", siren, 300, "held", None, "A network of sines learns an image."),
    Training("multi-task-unused-head", "regression", multi_task, 300, "set", None, "One of three heads has no task here."),
    Training(
        "regression-outliers", "regression", outliers, 300, "held", None, "Targets have heavy tails; the loss is Huber's."
    ),
]
