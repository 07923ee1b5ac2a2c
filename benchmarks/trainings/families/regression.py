"""Networks that learn a smooth function whose values have a drawn scale and centre.

Healthy: the squared error on fresh samples is at most 60 % of the variance of their targets (a margin of 0.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from benchmarks.trainings.families.family import ANY, Family
from benchmarks.trainings.optimizers import adapts
from benchmarks.trainings.parts import ACTIVATIONS, REGRESSION, dropouts, learned, margin, predicted, seeded
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "features": random.choice([1, 2, 4, 8]),
        "targets": random.choice([1, 1, 3]),
        "width": random.choice([32, 64, 128]),
        "depth": random.choice([1, 2, 3]),
        "scale": float(f"{10 ** random.uniform(-3, 2):.2g}"),
        "centre": random.choice([0.0, 0.0, 1.0]),
        "frequency": round(random.uniform(0.5, 1.5), 2),
        "noise": round(random.uniform(0.0, 0.3), 2),
    }


class Scaled(nn.Module):
    """Gives outputs the scale of the targets."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * inputs


def is_scaled(spec: Spec) -> bool:
    """Whether the model multiplies by the scale of the targets: the steps of its optimizer do not grow with that scale."""
    return (adapts(spec) or spec.optimizer in ("rprop", "muon")) and not 0.1 <= spec["scale"] <= 3


def data(spec: Spec, purpose: str) -> tuple[Tensor, Tensor]:
    """Samples of a sum of waves with noise: 512 for an optimizer that takes all of them at once, else 2,048."""
    count = 512 if spec.batch == 512 and purpose == "train" else 2048
    source, task = spec.source(purpose, of_task=True), spec.source("waves", of_task=True)
    inputs = torch.randn(count, spec["features"], generator=source)
    directions = spec["frequency"] * torch.randn(spec["features"], 3, generator=task) / spec["features"] ** 0.5
    mixed = torch.randn(3, spec["targets"], generator=task)
    values = torch.sin(inputs @ directions) @ mixed
    values = values / values.std() + spec["noise"] * torch.randn(count, spec["targets"], generator=source)
    return inputs, spec["scale"] * (values + spec["centre"])


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    inputs, targets = data(spec, "train")
    layers: list[nn.Module] = []
    for index in range(spec["depth"]):
        size = spec["width"] if index else spec["features"]
        layers += [nn.Linear(size, spec["width"]), ACTIVATIONS[spec.activation](), *dropouts(spec)]
    ends = [Scaled(spec["scale"])] if is_scaled(spec) else []
    model = nn.Sequential(*layers, nn.Linear(spec["width"], spec["targets"]), *ends)
    return learned(spec, model, REGRESSION[spec.loss], inputs, targets)


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the variance of fresh targets that the model explains."""
    inputs, targets = data(spec, "fresh")
    error = (predicted(module, inputs) - targets).double().square().mean()
    return margin(error, targets.double().var(0, unbiased=False).mean())


FAMILY = Family(
    "regression",
    0.4,
    _draw,
    make,
    measure,
    tuple(REGRESSION),
    optimizers=(*ANY, "muon", "rprop", "rprop", "lbfgs", "lbfgs", "lbfgs"),
    batches=(4, 16, 32, 64, 128, 1024),
    whole=512,
)
