"""Autoencoders and variational autoencoders of digits.

Healthy: the squared error of the reconstruction of digits that the model was not trained on is at most 70 % of the variance of
their pixels (a margin of 0.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.trainings.families.family import Family
from benchmarks.trainings.parts import ACTIVATIONS, Learner, dropouts, learned, margin, predicted, seeded, split
from benchmarks.trainings.spec import Spec
from galleries.health.faulty_parts import digits
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "codes": random.choice([6, 10, 16]),
        "width": random.choice([48, 64, 128]),
        "depth": random.choice([1, 2]),
        "variational": random.random() < 0.5,
        "beta": float(f"{10 ** random.uniform(-3, -1.5):.2g}"),
        "noise": random.choice([0.0, 0.0, 0.3]),
    }


class Autoencoder(nn.Module):
    """An encoder to the mean and the logarithm of the variance of codes, or to codes, and a decoder."""

    def __init__(self, spec: Spec, size: int) -> None:
        super().__init__()
        codes, self.is_variational = spec["codes"], spec["variational"]
        self.encoder = self._stack(spec, size, codes * (2 if self.is_variational else 1))
        self.decoder = self._stack(spec, codes, size)

    @staticmethod
    def _stack(spec: Spec, first: int, last: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for index in range(spec["depth"]):
            size = spec["width"] if index else first
            layers += [nn.Linear(size, spec["width"]), ACTIVATIONS[spec.activation](), *dropouts(spec)]
        return nn.Sequential(*layers, nn.Linear(spec["width"], last))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """The reconstruction, and the divergence of the codes from their prior."""
        codes = self.encoder(pixels)
        if not self.is_variational:
            return self.decoder(codes), codes.new_zeros(())
        mean, log_variance = codes.chunk(2, 1)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        noise = torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else 0.0
        return self.decoder(mean + noise), divergence


class _Learner(Learner):
    def loss(self, batch: Any) -> Tensor:
        (pixels,) = batch
        given = pixels + self.spec["noise"] * torch.randn_like(pixels) if self.spec["noise"] else pixels
        reconstruction, divergence = self(given)
        return self.criterion(reconstruction, pixels) + self.spec["beta"] * divergence


def _data(spec: Spec, purpose: str) -> Tensor:
    pixels, _ = digits()
    return pixels[split(pixels, spec, purpose)]


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    pixels = _data(spec, "train")
    model = Autoencoder(spec, pixels.shape[1])
    criterion = functional.mse_loss if spec.loss == "squared" else functional.huber_loss
    return learned(spec, model, criterion, pixels, learner=_Learner)


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the variance of fresh pixels that the reconstruction explains."""
    pixels = _data(spec, "fresh")
    reconstruction, _ = predicted(module, pixels)
    return margin((reconstruction - pixels).double().square().mean(), pixels.double().var(0, unbiased=False).mean())


FAMILY = Family("autoencoder", 0.3, _draw, make, measure, ("squared", "squared", "huber"))
