"""Flows of affine couplings that learn the density of points in the plane.

Healthy: on fresh points, the model has gained at least 40 % of the logarithm of the density that lies between the best normal
distribution and the right one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from benchmarks.trainings.families.family import Family
from benchmarks.trainings.parts import ACTIVATIONS, Learner, learned, predicted, seeded
from benchmarks.trainings.points import points
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "points": random.choice(["banana", "banana", "ring"]),
        "couplings": random.choice([4, 6]),
        "width": random.choice([32, 64]),
        "zero": random.random() < 0.5,
    }


class Coupling(nn.Module):
    """Scales and shifts one coordinate by what a net makes of the other one."""

    def __init__(self, spec: Spec, turned: bool) -> None:
        super().__init__()
        width, self.is_turned = spec["width"], turned
        layers = [nn.Linear(1, width), ACTIVATIONS[spec.activation](), nn.Linear(width, width), ACTIVATIONS[spec.activation]()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 2))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The other coordinates, and the logarithm of the determinant."""
        given, changed = inputs.flip(1).chunk(2, 1) if self.is_turned else inputs.chunk(2, 1)
        scale, shift = self.net(given).chunk(2, 1)
        scale = 2 * torch.tanh(scale / 2)
        both = torch.cat([given, changed * scale.exp() + shift], 1)
        return both.flip(1) if self.is_turned else both, scale.squeeze(1)


class Flow(nn.Module):
    """Couplings to a normal distribution. The output is the logarithm of the density of each point."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(spec, index % 2 == 1) for index in range(spec["couplings"]))

    def forward(self, inputs: Tensor) -> Tensor:
        total = torch.zeros_like(inputs[:, 0])
        for coupling in self.couplings:
            inputs, volume = coupling(inputs)
            total = total + volume
        return total - 0.5 * inputs.square().sum(1) - math.log(2 * math.pi)


class _Learner(Learner):
    def loss(self, batch: Any) -> Tensor:
        return self.criterion(self(batch[0]), batch[0])


def _negative_mean(density: Tensor, _: Tensor) -> Tensor:
    return -density.mean()


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    model = Flow(spec)
    case = learned(spec, model, _negative_mean, points(spec, "train")[0], learner=_Learner)
    couplings: Any = model.couplings if spec["zero"] else ()
    for coupling in couplings:
        nn.init.zeros_(coupling.net[-1].weight)
        nn.init.zeros_(coupling.net[-1].bias)
    return case


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the gain from the best normal distribution to the right density that the model has on fresh points."""
    fresh, right = points(spec, "fresh")
    spread = torch.cov(fresh.double().T)
    normal = -0.5 * torch.logdet(2 * math.pi * math.e * spread)
    gain = float((predicted(module, fresh).double().mean() - normal) / (right.double().mean() - normal))
    return gain if math.isfinite(gain) else -math.inf


FAMILY = Family(
    "flow",
    0.4,
    _draw,
    make,
    measure,
    ("natural",),
    pace=2.0,
    optimizers=("adam", "adam-fused", "adamw", "adamw-fast", "nadam", "radam", "adamax", "amsgrad", "muon"),
    activations=("relu", "tanh", "silu", "gelu", "elu"),
    initialisations=("default", "xavier"),
    batches=(64, 128, 256),
    drops=False,
    tricks=False,
)
