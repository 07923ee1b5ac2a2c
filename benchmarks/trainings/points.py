"""Made points in the plane, whose density is known."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from benchmarks.trainings.spec import Spec

_WIDTH, _CLOUDS, _RADIUS = 0.3, 5, 2.0


def points(spec: Spec, purpose: str) -> tuple[Tensor, Tensor]:
    """2,048 points of a bent cloud ("banana") or of a ring of five clouds, and the logarithm of the density of each."""
    source = spec.source(purpose, of_task=True)
    noise = torch.randn(2048, 2, generator=source)
    if spec["points"] == "banana":
        first = noise[:, 0]
        density = _normal(first, 1.0) + _normal(_WIDTH * noise[:, 1], _WIDTH)
        return torch.stack([first, first.square() - 1 + _WIDTH * noise[:, 1]], 1), density
    angles = 2 * math.pi * torch.arange(_CLOUDS) / _CLOUDS
    centres = _RADIUS * torch.stack([angles.cos(), angles.sin()], 1)
    chosen = centres[torch.randint(_CLOUDS, (2048,), generator=source)] + _WIDTH * noise
    each = _normal(chosen[:, None] - centres, _WIDTH).sum(2)
    return chosen, each.logsumexp(1) - math.log(_CLOUDS)


def _normal(distance: Tensor, deviation: float) -> Tensor:
    return -0.5 * (distance / deviation).square() - math.log(deviation * math.sqrt(2 * math.pi))
