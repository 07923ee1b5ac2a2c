"""Multilayer perceptrons that classify points, spirals, sparse bags of words, or digits.

Healthy: the model makes at most 60 % of the errors, on fresh samples, of guessing the most frequent class (a margin of 0.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from benchmarks.trainings.families.family import ANY, Family
from benchmarks.trainings.parts import (
    ACTIVATIONS,
    CLASSIFICATION,
    Residual,
    accuracy_margin,
    dropouts,
    learned,
    predicted,
    seeded,
    split,
)
from benchmarks.trainings.spec import Spec
from galleries.health.faulty_parts import digits
from galleries.health.training import Case

_NORMS = {"none": None, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "data": random.choice(["blobs", "spirals", "bags", "digits", "digits"]),
        "classes": random.choice([2, 3, 5, 10]),
        "width": random.choice([24, 32, 64, 128]),
        "depth": random.choice([1, 2, 3, 4, 6]),
        "norm": random.choice(["none", "none", "batch", "layer"]),
        "residual": random.random() < 0.3,
        "drop_path": random.choice([0.0, 0.0, 0.2]),
        "noise": round(random.uniform(0.5, 1.5), 2),
    }


def data(spec: Spec, purpose: str) -> tuple[Tensor, Tensor]:
    """The samples of a purpose: 2,048 for "train", or 1,024 fresh ones."""
    count = 2048 if purpose == "train" else 1024
    source = spec.source(purpose, of_task=True)
    if spec["data"] == "digits":
        pixels, labels = digits()
        chosen = split(pixels, spec, purpose)
        return pixels[chosen], labels[chosen]
    labels = torch.randint(spec["classes"], (count,), generator=source)
    if spec["data"] == "bags":
        words = 2 * torch.randn(spec["classes"], 64, generator=spec.source("centres", of_task=True))
        chosen = torch.multinomial(words.softmax(1)[labels], 6, replacement=True, generator=source)
        return torch.zeros(count, 64).scatter_add_(1, chosen, torch.ones(count, 6)), labels
    if spec["data"] == "blobs":
        centres = 1.5 * torch.randn(spec["classes"], 12, generator=spec.source("centres", of_task=True))
        return centres[labels] + spec["noise"] * torch.randn(count, 12, generator=source), labels
    radius = torch.rand(count, generator=source)
    angle = 2 * torch.pi * labels / spec["classes"] + 2 * radius
    angle = angle + 0.1 * spec["noise"] * torch.randn(count, generator=source) / spec["classes"]
    return 2 * torch.stack([radius * angle.sin(), radius * angle.cos()], 1), labels


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    inputs, labels = data(spec, "train")
    width, norm = spec["width"], _NORMS[spec["norm"]]

    def block(size: int) -> nn.Module:
        parts = [nn.Linear(size, width), *([norm(width)] if norm else []), ACTIVATIONS[spec.activation](), *dropouts(spec)]
        return nn.Sequential(*parts)

    blocks = [block(inputs.shape[1])]
    blocks += [
        Residual(block(width), drop=spec["drop_path"]) if spec["residual"] else block(width) for _ in range(spec["depth"] - 1)
    ]
    model = nn.Sequential(*blocks, nn.Linear(width, 10 if spec["data"] == "digits" else spec["classes"]))
    return learned(spec, model, CLASSIFICATION[spec.loss], inputs, labels)


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the errors of guessing that the model does not make on fresh samples."""
    inputs, labels = data(spec, "fresh")
    return accuracy_margin(predicted(module, inputs), labels)


FAMILY = Family(
    "mlp", 0.4, _draw, make, measure, tuple(CLASSIFICATION), optimizers=(*ANY, "muon"), batches=(4, 16, 32, 64, 128, 512)
)
