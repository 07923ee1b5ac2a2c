"""Small U-Nets that predict the noise in images of digits at a level that is drawn for each, as diffusion models do.

Healthy: on fresh images, the squared error is at most 70 % of the variance of the noise (a margin of 0.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Generator, Tensor, nn
from torch.nn import functional

from benchmarks.trainings.families.cnn import norm_of
from benchmarks.trainings.families.family import Family
from benchmarks.trainings.parts import ACTIVATIONS, Learner, learned, margin, predicted, seeded, split
from benchmarks.trainings.spec import Spec
from galleries.health.faulty_parts import images
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "channels": random.choice([8, 16]),
        "norm": random.choice(["none", "group", "group"]),
        "up": random.choice(["transposed", "nearest"]),
        "skips": random.choice(["joined", "added"]),
        "zero": random.random() < 0.3,
    }


class UNet(nn.Module):
    """Two levels down and up again, to one channel."""

    def __init__(self, spec: Spec, inputs: int) -> None:
        super().__init__()
        channels, self.is_joined = spec["channels"], spec["skips"] == "joined"
        self.entry = self._block(spec, inputs, channels)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.middle = self._block(spec, 2 * channels, 2 * channels)
        if spec["up"] == "transposed":
            self.up: nn.Module = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        else:
            self.up = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(2 * channels, channels, 3, padding=1))
        self.exit = self._block(spec, 2 * channels if self.is_joined else channels, channels)
        self.head = nn.Conv2d(channels, 1, 1)

    @staticmethod
    def _block(spec: Spec, first: int, last: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(first, last, 3, padding=1), *norm_of(spec["norm"], last), ACTIVATIONS[spec.activation]())

    def forward(self, inputs: Tensor) -> Tensor:
        wide = self.entry(inputs)
        raised = self.up(self.middle(self.down(wide)))
        return self.head(self.exit(torch.cat([wide, raised], 1) if self.is_joined else wide + raised))


def with_head(case: Case, spec: Spec) -> Case:
    """The case of a U-Net, whose head begins at zero if that is drawn."""
    if spec["zero"]:
        model: Any = case.module.model
        nn.init.zeros_(model.head.weight)
    return case


def noisy(pixels: Tensor, source: Generator | None = None) -> tuple[Tensor, Tensor]:
    """Images with noise and its level as their channels, and the noise."""
    level = torch.rand(len(pixels), 1, 1, 1, generator=source)
    noise = torch.randn(pixels.shape, generator=source)
    mixed = (1 - level).sqrt() * pixels + level.sqrt() * noise
    return torch.cat([mixed, level.expand_as(pixels)], 1), noise


class _Learner(Learner):
    def loss(self, batch: Any) -> Tensor:
        (pixels,) = batch
        inputs, noise = noisy(pixels.float())
        return self.criterion(self(inputs.to(pixels.dtype)), noise.to(pixels.dtype))


def _data(spec: Spec, purpose: str) -> Tensor:
    pixels, _ = images()
    return pixels[split(pixels, spec, purpose)]


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    losses: Mapping[str, Any] = {"squared": functional.mse_loss, "absolute": functional.l1_loss, "huber": functional.huber_loss}
    return with_head(learned(spec, UNet(spec, 2), losses[spec.loss], _data(spec, "train"), learner=_Learner), spec)


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the variance of the noise that the model predicts on fresh images."""
    inputs, noise = noisy(_data(spec, "fresh"), spec.source("noise", of_task=True))
    return margin((predicted(module, inputs) - noise).double().square().mean(), noise.double().var(unbiased=False))


FAMILY = Family(
    "denoising",
    0.3,
    _draw,
    make,
    measure,
    ("squared", "squared", "absolute", "huber"),
    optimizers=("adam", "adamw", "adamw-fast", "adamw-fused", "amsgrad", "radam", "nadam", "momentum"),
    activations=("relu", "leaky", "gelu", "silu", "mish", "elu"),
    batches=(32, 64),
    drops=False,
    tricks=False,
)
