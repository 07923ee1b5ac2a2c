"""Convolutional networks, with norms and without, that classify images of digits.

Healthy: the model makes at most 60 % of the errors, on images that it was not trained on, of guessing the most frequent class.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from benchmarks.trainings.families.family import Family
from benchmarks.trainings.parts import (
    ACTIVATIONS,
    CLASSIFICATION,
    accuracy_margin,
    dropouts,
    learned,
    predicted,
    seeded,
    split,
)
from benchmarks.trainings.spec import Spec
from galleries.health.faulty_parts import images
from galleries.health.training import Case


def norm_of(name: str, channels: int) -> list[nn.Module]:
    """The norm of channels in a list, which is empty for "none"."""
    if name == "none":
        return []
    return [nn.BatchNorm2d(channels) if name == "batch" else nn.GroupNorm(4, channels)]


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "channels": random.choice([8, 16, 24]),
        "depth": random.choice([2, 3, 4]),
        "norm": random.choice(["none", "batch", "batch", "group"]),
        "depthwise": random.random() < 0.25,
        "residual": random.random() < 0.4,
        "pool": random.choice(["average", "flat", "largest"]),
        "raw": random.random() < 0.15,
    }


class Block(nn.Module):
    """A convolution, its norm and its activation, beside the identity if the block is residual."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        channels = spec["channels"]
        groups = channels if spec["depthwise"] else 1
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=spec["norm"] == "none")
        self.mixing = nn.Sequential(*([nn.Conv2d(channels, channels, 1)] if spec["depthwise"] else []))
        self.norm = nn.Sequential(*norm_of(spec["norm"], channels))
        self.activation = ACTIVATIONS[spec.activation]()
        self.is_residual = spec["residual"]

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.activation(self.norm(self.mixing(self.convolution(inputs))))
        return inputs + outputs if self.is_residual else outputs


def data(spec: Spec, purpose: str) -> tuple[Tensor, Tensor]:
    """1,400 images to train on, or the other 397. Raw ones have pixels from 0 to 255 in front of a batch norm."""
    pixels, labels = images()
    if spec["raw"] and spec["norm"] == "batch":
        pixels = 255 * (pixels - pixels.min()) / (pixels.max() - pixels.min())
    chosen = split(pixels, spec, purpose)
    return pixels[chosen], labels[chosen]


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    channels = spec["channels"]
    ends = {"average": nn.AdaptiveAvgPool2d(1), "largest": nn.AdaptiveMaxPool2d(1), "flat": nn.AvgPool2d(2)}
    size = channels * (4 if spec["pool"] == "flat" else 1)
    stem = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), *norm_of(spec["norm"], channels), ACTIVATIONS[spec.activation]())
    blocks = [Block(spec) for _ in range(spec["depth"])]
    model = nn.Sequential(
        stem, blocks[0], nn.MaxPool2d(2), *blocks[1:], ends[spec["pool"]], nn.Flatten(), *dropouts(spec), nn.Linear(size, 10)
    )
    return learned(spec, model, CLASSIFICATION[spec.loss], *data(spec, "train"))


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the errors of guessing that the model does not make on fresh images."""
    inputs, labels = data(spec, "fresh")
    return accuracy_margin(predicted(module, inputs), labels)


FAMILY = Family("cnn", 0.4, _draw, make, measure, tuple(CLASSIFICATION), batches=(16, 32, 64))
