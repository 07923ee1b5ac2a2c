"""U-Nets that find the strokes of digits in noisy images.

Healthy: on fresh images, the model makes at most 60 % of the errors, over all pixels, of calling each of them background.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional

from benchmarks.trainings.families.denoising import UNet, with_head
from benchmarks.trainings.families.family import Family
from benchmarks.trainings.parts import learned, margin, predicted, seeded, split
from benchmarks.trainings.spec import Spec
from galleries.health.faulty_parts import images
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "channels": random.choice([8, 16]),
        "norm": random.choice(["none", "batch", "group"]),
        "up": random.choice(["transposed", "nearest"]),
        "skips": random.choice(["joined", "added"]),
        "zero": random.random() < 0.2,
        "noise": round(random.uniform(0.3, 0.8), 2),
    }


def _dice(logits: Tensor, targets: Tensor) -> Tensor:
    shares = logits.sigmoid()
    return 1 - (2 * (shares * targets).sum() + 1) / (shares.sum() + targets.sum() + 1)


def _both(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, targets) + _dice(logits, targets)


_LOSSES: Mapping[str, Any] = {"cross-entropy": functional.binary_cross_entropy_with_logits, "dice": _dice, "both": _both}


def data(spec: Spec, purpose: str) -> tuple[Tensor, Tensor]:
    """Noisy images, and which of their pixels belong to strokes."""
    pixels, _ = images()
    pixels = pixels[split(pixels, spec, purpose)]
    noise = torch.randn(pixels.shape, generator=spec.source(purpose, of_task=True))
    return pixels + spec["noise"] * noise, (pixels > 0.5).float()


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    return with_head(learned(spec, UNet(spec, 1), _LOSSES[spec.loss], *data(spec, "train")), spec)


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the errors of calling all pixels background that the model does not make."""
    inputs, targets = data(spec, "fresh")
    logits = predicted(module, inputs)
    errors = ((logits > 0) != (targets > 0)).double().mean()
    return margin(errors, targets.double().mean()) if bool(logits.isfinite().all()) else float("-inf")


FAMILY = Family(
    "segmentation",
    0.4,
    _draw,
    make,
    measure,
    ("cross-entropy", "cross-entropy", "dice", "both"),
    optimizers=("adam", "adam-fused", "adamw", "adamw-foreach", "amsgrad", "radam", "nadam", "rmsprop", "adamax"),
    activations=("relu", "leaky", "gelu", "silu", "mish", "elu"),
    batches=(16, 32, 64),
    drops=False,
    tricks=False,
)
