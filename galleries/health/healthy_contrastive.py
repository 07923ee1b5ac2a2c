"""Healthy trainings that compare views of samples."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.health.faulty_parts import Learner, adamw, digits, loader
from galleries.health.training import Case, Training


def _view(pixels: Tensor) -> Tensor:
    return (pixels + 0.3 * torch.randn_like(pixels)) * (torch.rand_like(pixels) > 0.2)


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class SimClr(Learner):
    """Tells the other view of a sample from the views of other samples."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.encoder, self.projector = nn.Sequential(_mlp(64, 128, 64), nn.ReLU()), _mlp(64, 64, 32)

    def loss(self, batch: Any) -> Tensor:
        pixels, _ = batch
        views = torch.cat([_view(pixels), _view(pixels)])
        projected = functional.normalize(self.projector(self.encoder(views)), dim=1)
        similarity = (projected @ projected.T / 0.2).masked_fill(torch.eye(len(views), dtype=torch.bool), -torch.inf)
        return functional.cross_entropy(similarity, torch.arange(len(views)).roll(len(pixels)))


def simclr(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(SimClr(), loader(*digits(), seed=seed, batch=64))


class Byol(Learner):
    """Predicts what a slowly moving copy of itself says of another view."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.online = nn.Sequential(_mlp(64, 128, 64), nn.ReLU(), _mlp(64, 128, 32))
        self.predictor = _mlp(32, 64, 32)
        self.target = deepcopy(self.online).requires_grad_(False)

    def loss(self, batch: Any) -> Tensor:
        pixels, _ = batch
        first, second = _view(pixels), _view(pixels)
        with torch.no_grad():
            targets = [self.target(second), self.target(first)]
        outputs = [self.online(view) for view in (first, second)]
        self.log("spread", functional.normalize(outputs[0], dim=1).std(0).mean())
        pairs = zip(outputs, targets, strict=True)
        return sum((1 - functional.cosine_similarity(self.predictor(output), target)).mean() for output, target in pairs)

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
            target.lerp_(online, 0.02)

    def configure_optimizers(self) -> Any:
        return self.make_optimizer([parameter for parameter in self.parameters() if parameter.requires_grad])


def byol(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Byol(), loader(*digits(), seed=seed, batch=64))


class TwoTowers(Learner):
    """Matches upper with lower halves of digits, at a temperature that is learned."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.upper, self.lower = _mlp(32, 96, 32), _mlp(32, 96, 32)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def loss(self, batch: Any) -> Tensor:
        pixels, _ = batch
        upper, lower = functional.normalize(self.upper(pixels[:, :32])), functional.normalize(self.lower(pixels[:, 32:]))
        logits, labels = self.scale.exp() * upper @ lower.T, torch.arange(len(pixels))
        return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)) / 2


def two_towers(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(TwoTowers(), loader(*digits(), seed=seed, batch=64))


TRAININGS = [
    Training("simclr", "contrastive", simclr, 300, "set", None, "Two views of a digit are told from those of others."),
    Training("byol", "contrastive", byol, 300, "held", None, "A network predicts a slow copy of itself."),
    Training("two-towers", "contrastive", two_towers, 300, "set", None, "Halves of digits are matched by two networks."),
]
