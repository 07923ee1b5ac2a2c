"""Encoders that learn to recognise a digit in two noisy views of it.

Healthy: of 256 fresh digits, the model finds the other view of each among all of them for at least 40 % (a margin of 0.4 over
chance).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.trainings.families.family import ANY, Family
from benchmarks.trainings.parts import ACTIVATIONS, Learner, dropouts, learned, predicted, seeded, split
from benchmarks.trainings.spec import Spec
from galleries.health.faulty_parts import digits
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "width": random.choice([64, 128]),
        "depth": random.choice([1, 2, 3]),
        "codes": random.choice([16, 32]),
        "norm": random.choice(["none", "batch", "layer"]),
        "temperature": random.choice([0.1, 0.2, 0.5]),
        "noise": round(random.uniform(0.2, 0.5), 2),
        "symmetric": random.random() < 0.5,
    }


class _Learner(Learner):
    def loss(self, batch: Any) -> Tensor:
        (pixels,) = batch
        first, second = (self(pixels + self.spec["noise"] * torch.randn_like(pixels)) for _ in range(2))
        return self.criterion(first, second)


def _criterion(spec: Spec) -> Any:
    def loss(first: Tensor, second: Tensor) -> Tensor:
        scores = functional.normalize(first, dim=1) @ functional.normalize(second, dim=1).T / spec["temperature"]
        labels = torch.arange(len(scores))
        one = functional.cross_entropy(scores, labels)
        return (one + functional.cross_entropy(scores.T, labels)) / 2 if spec["symmetric"] else one

    return loss


def _data(spec: Spec, purpose: str) -> Tensor:
    pixels, _ = digits()
    return pixels[split(pixels, spec, purpose)[: None if purpose == "train" else 256]]


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    pixels, width = _data(spec, "train"), spec["width"]
    norms: Mapping[str, list[Any]] = {"none": [], "batch": [nn.BatchNorm1d], "layer": [nn.LayerNorm]}
    layers: list[nn.Module] = []
    for index in range(spec["depth"]):
        layers += [nn.Linear(width if index else pixels.shape[1], width), *(norm(width) for norm in norms[spec["norm"]])]
        layers += [ACTIVATIONS[spec.activation](), *dropouts(spec)]
    model = nn.Sequential(*layers, nn.Linear(width, spec["codes"]))
    return learned(spec, model, _criterion(spec), pixels, learner=_Learner)


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of fresh digits that are found by another view of them, over that of chance."""
    pixels, source = _data(spec, "fresh"), spec.source("views", of_task=True)
    views = [pixels + spec["noise"] * torch.randn(pixels.shape, generator=source) for _ in range(2)]
    first, second = (functional.normalize(predicted(module, each).double(), dim=1) for each in views)
    scores = first @ second.T
    found = (scores.argmax(1) == torch.arange(len(scores))).double().mean()
    chance = 1 / len(scores)
    return float((found - chance) / (1 - chance)) if bool(scores.isfinite().all()) else float("-inf")


FAMILY = Family("contrastive", 0.4, _draw, make, measure, ("natural",), optimizers=ANY, batches=(32, 64, 128))
