"""Generators of points in the plane, each against a discriminator, with two optimizers.

Healthy: the energy distance of generated points to fresh ones is at most half of that of their mean (a margin of 0.5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import softplus

from benchmarks.trainings.families.family import Family
from benchmarks.trainings.optimizers import configured
from benchmarks.trainings.parts import ACTIVATIONS, Learner, learned, margin, predicted, seeded
from benchmarks.trainings.points import points
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "points": random.choice(["banana", "ring"]),
        "codes": random.choice([2, 8]),
        "width": random.choice([32, 64]),
        "depth": random.choice([1, 2]),
        "twice": random.random() < 0.3,
    }


class Gan(nn.Module):
    """A generator of points from codes, and a discriminator, which gives each point a score."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.generator = self._stack(spec, spec["codes"], 2)
        self.discriminator = self._stack(spec, 2, 1)

    @staticmethod
    def _stack(spec: Spec, first: int, last: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for index in range(spec["depth"]):
            layers += [nn.Linear(spec["width"] if index else first, spec["width"]), ACTIVATIONS[spec.activation]()]
        return nn.Sequential(*layers, nn.Linear(spec["width"], last))

    def forward(self, codes: Tensor) -> Tensor:
        return self.generator(codes)


_JUDGING: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "natural": lambda real, fake: softplus(-real).mean() + softplus(fake).mean(),
    "hinge": lambda real, fake: (1 - real).relu().mean() + (1 + fake).relu().mean(),
    "squares": lambda real, fake: (real - 1).square().mean() + fake.square().mean(),
    "wasserstein": lambda real, fake: fake.mean() - real.mean(),
}
"""The loss of the discriminator, by its scores of real and of generated points."""


def _fooling(spec: Spec) -> Any:
    """The loss of the generator, by the scores of its points."""
    if spec.loss == "squares":
        return lambda scores, _: (scores - 1).square().mean()
    return (lambda scores, _: softplus(-scores).mean()) if spec.loss == "natural" else (lambda scores, _: -scores.mean())


class _Learner(Learner):
    model: Gan

    def codes(self, points: Tensor) -> Tensor:
        return torch.randn(len(points), self.spec["codes"], dtype=points.dtype)

    def loss(self, batch: Any) -> Tensor:
        """The loss of the generator."""
        return self.criterion(self.model.discriminator(self(self.codes(batch[0]))), batch[0])

    def judging_loss(self, batch: Any) -> Tensor:
        """The loss of the discriminator."""
        (real,) = batch
        fake = self(self.codes(real)).detach()
        loss = _JUDGING[self.spec.loss](self.model.discriminator(real), self.model.discriminator(fake))
        if self.spec.loss != "wasserstein":
            return loss
        share = torch.rand(len(real), 1, dtype=real.dtype)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(self.model.discriminator(between).sum(), between, create_graph=True)
        return loss + 5 * (slope.norm(dim=1) - 1).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        optimizers: Any = self.optimizers()
        generating, judging = optimizers
        losses = []
        turns = [(judging, self.judging_loss)] * (2 if self.spec["twice"] else 1) + [(generating, self.loss)]
        for optimizer, loss_of in turns:
            self.toggle_optimizer(optimizer)
            losses.append(loss_of(batch))
            optimizer.zero_grad()
            self.manual_backward(losses[-1])
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        self.step_schedules()
        return losses[-1].detach()

    def configure_optimizers(self) -> Any:
        return configured(self.spec, self.held(self.model.generator), self.held(self.model.discriminator))


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    real, _ = points(spec, "train")
    case = learned(spec, Gan(spec), _fooling(spec), real, learner=_Learner)
    # Lightning counts the steps of all optimizers.
    return Case(case.module, case.loader, {"max_steps": (3 if spec["twice"] else 2) * spec.steps})


def energy(first: Tensor, second: Tensor) -> Tensor:
    """The energy distance of two sets of points."""
    return 2 * torch.cdist(first, second).mean() - torch.cdist(first, first).mean() - torch.cdist(second, second).mean()


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the energy distance of the mean that generated points do not have."""
    fresh = points(spec, "fresh")[0].double()
    codes = torch.randn(len(fresh), spec["codes"], generator=spec.source("codes", of_task=True))
    mean = fresh.mean(0, keepdim=True)
    return margin(energy(predicted(module, codes).double(), fresh), energy(mean, fresh))


FAMILY = Family(
    "gan",
    0.5,
    _draw,
    make,
    measure,
    ("natural", "natural", "hinge", "squares", "wasserstein"),
    optimizers=("adam-half", "adam-half", "adam", "adamw", "rmsprop"),
    activations=("relu", "leaky", "leaky", "silu", "elu"),
    initialisations=("default", "xavier", "orthogonal"),
    batches=(64, 128),
    drops=False,
    tricks=False,
)
