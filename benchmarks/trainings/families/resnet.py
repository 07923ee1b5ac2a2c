"""Residual networks with stages, that classify images of digits: pre-activated or not, with branches that are zero at first, or
dropped at random.

Healthy: the model makes at most 60 % of the errors, on images that it was not trained on, of guessing the most frequent class.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from benchmarks.trainings.families.cnn import data, norm_of
from benchmarks.trainings.families.family import Family
from benchmarks.trainings.parts import (
    ACTIVATIONS,
    CLASSIFICATION,
    Residual,
    accuracy_margin,
    dropouts,
    learned,
    predicted,
    seeded,
)
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "channels": random.choice([8, 16]),
        "blocks": random.choice([1, 2]),
        "norm": random.choice(["batch", "batch", "group"]),
        "pre": random.random() < 0.4,
        "zero": random.random() < 0.4,
        "drop_path": random.choice([0.0, 0.0, 0.0, 0.1, 0.3]),
        "raw": random.random() < 0.15,
    }


def _branch(spec: Spec, first: int, last: int, stride: int) -> nn.Sequential:
    def activation() -> nn.Module:
        return ACTIVATIONS[spec.activation]()

    start, end = nn.Conv2d(first, last, 3, stride, 1, bias=False), nn.Conv2d(last, last, 3, 1, 1, bias=False)
    norm, final = norm_of(spec["norm"], last), norm_of(spec["norm"], last)
    if spec["pre"]:
        return nn.Sequential(*norm_of(spec["norm"], first), activation(), start, *norm, activation(), end)
    if spec["zero"]:
        last_norm: Any = final[0]
        nn.init.zeros_(last_norm.weight)
    return nn.Sequential(start, *norm, activation(), end, *final)


def _block(spec: Spec, first: int, last: int, stride: int) -> nn.Sequential:
    branch = _branch(spec, first, last, stride)
    if first == last and stride == 1:
        block: nn.Module = Residual(branch, drop=spec["drop_path"])
    else:
        block = Residual(branch, nn.Sequential(nn.Conv2d(first, last, 1, stride, bias=False), *norm_of(spec["norm"], last)))
    return nn.Sequential(block, *([] if spec["pre"] else [ACTIVATIONS[spec.activation]()]))


class ResNet(nn.Module):
    """A stem, two stages of which the second halves the image and doubles the channels, and a head."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        size = spec["channels"]
        self.stem = nn.Sequential(nn.Conv2d(1, size, 3, padding=1, bias=False), *norm_of(spec["norm"], size))
        blocks = [_block(spec, size, size, 1) for _ in range(spec["blocks"])]
        blocks += [_block(spec, 2 * size if index else size, 2 * size, 1 if index else 2) for index in range(spec["blocks"])]
        self.blocks = nn.Sequential(*blocks)
        end = [*norm_of(spec["norm"], 2 * size), ACTIVATIONS[spec.activation]()] if spec["pre"] else []
        self.end = nn.Sequential(*end, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *dropouts(spec))
        self.head = nn.Linear(2 * size, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.end(self.blocks(self.stem(images))))


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    return learned(spec, ResNet(spec), CLASSIFICATION[spec.loss], *data(spec, "train"))


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the errors of guessing that the model does not make on fresh images."""
    inputs, labels = data(spec, "fresh")
    return accuracy_margin(predicted(module, inputs), labels)


FAMILY = Family(
    "resnet",
    0.4,
    _draw,
    make,
    measure,
    tuple(CLASSIFICATION),
    activations=("relu", "relu", "leaky", "elu", "gelu", "silu", "mish", "hardswish"),
    initialisations=("default", "kaiming", "xavier", "truncated"),
    batches=(16, 32, 64),
)
