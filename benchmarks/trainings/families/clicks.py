"""Recommenders that learn which of many shown items are clicked on, from tables of users and items, bags of tags, and numbers.

Healthy: of fresh pairs of a shown item with a click and one without, the model orders at least 65 % as it should (twice the
share, less one: a margin of 0.3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.trainings.families.family import Family
from benchmarks.trainings.optimizers import has_sparse_tables
from benchmarks.trainings.parts import ACTIVATIONS, Learner, dropouts, learned, predicted, seeded
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

_TAGS, _NUMBERS = 20, 4


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "users": random.choice([30, 100]),
        "items": random.choice([20, 60]),
        "width": random.choice([4, 8]),
        "hidden": random.choice([16, 32]),
        "rarity": random.choice([1.0, 2.0, 3.0]),
        "prior": random.random() < 0.5,
        "sparse": random.random() < 0.5,
    }


class Recommender(nn.Module):
    """Vectors of a user, of an item and of the tags of it, beside numbers, in front of a perceptron."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        width, is_sparse = spec["width"], has_sparse_tables(spec)
        self.users = nn.Embedding(spec["users"], width, sparse=is_sparse)
        self.items = nn.Embedding(spec["items"], width, sparse=is_sparse)
        self.tags = nn.EmbeddingBag(_TAGS, width, mode="mean", sparse=is_sparse)
        for table in (self.users, self.items, self.tags):
            nn.init.normal_(table.weight, std=0.3)
        self.hidden = nn.Sequential(
            nn.Linear(3 * width + _NUMBERS, spec["hidden"]), ACTIVATIONS[spec.activation](), *dropouts(spec)
        )
        self.head = nn.Linear(spec["hidden"], 1)

    def forward(self, places: Tensor, numbers: Tensor) -> Tensor:
        """The logit of a click on the items of `places`, which are a user, an item and three tags: int64 [batch, 5]."""
        vectors = [self.users(places[:, 0]), self.items(places[:, 1]), self.tags(places[:, 2:])]
        return self.head(self.hidden(torch.cat([*vectors, numbers.to(vectors[0].dtype)], 1))).squeeze(1)


class _Learner(Learner):
    def loss(self, batch: Any) -> Tensor:
        places, numbers, clicks = batch
        return self.criterion(self(places, numbers), clicks)


def _focal(logits: Tensor, clicks: Tensor) -> Tensor:
    each = functional.binary_cross_entropy_with_logits(logits, clicks, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


def data(spec: Spec, purpose: str) -> tuple[Tensor, Tensor, Tensor]:
    """8,192 shown items to train on, or 4,096 fresh ones: their places in tables, numbers, and whether each was clicked on."""
    count = 8192 if purpose == "train" else 4096
    task, source = spec.source("tastes", of_task=True), spec.source(purpose, of_task=True)
    popularity, activity = torch.randn(spec["items"], generator=task), torch.randn(spec["users"], generator=task)
    tags, slopes = torch.randn(_TAGS, generator=task), torch.randn(_NUMBERS, generator=task)
    sizes = (spec["users"], spec["items"], _TAGS, _TAGS, _TAGS)
    places = torch.stack([torch.randint(size, (count,), generator=source) for size in sizes], 1)
    numbers = torch.randn(count, _NUMBERS, generator=source)
    logits = popularity[places[:, 1]] + activity[places[:, 0]] + tags[places[:, 2:]].mean(1) + numbers @ slopes
    clicks = torch.rand(count, generator=source) < (logits - spec["rarity"]).sigmoid()
    return places, numbers, clicks.float()


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    model, tensors = Recommender(spec), data(spec, "train")
    criterion = functional.binary_cross_entropy_with_logits if spec.loss == "cross-entropy" else _focal
    case = learned(spec, model, criterion, *tensors, learner=_Learner)
    if spec["prior"]:
        rate = float(tensors[-1].mean())
        nn.init.constant_(model.head.bias, math.log(rate / (1 - rate)))
    return case


def measure(module: LightningModule, spec: Spec) -> float:
    """Twice the share of pairs in the right order, less one."""
    places, numbers, clicks = data(spec, "fresh")
    scores = predicted(module, places, numbers).double()
    if not bool(scores.isfinite().all()):
        return -1.0
    differences = scores[clicks > 0][:, None] - scores[clicks == 0]
    return float(differences.sign().mean())


FAMILY = Family(
    "clicks",
    0.3,
    _draw,
    make,
    measure,
    ("cross-entropy", "cross-entropy", "focal"),
    pace=2.0,
    optimizers=("adam", "adam-fused", "adamw", "adamax", "rmsprop", "adagrad", "adagrad", "sgd", "nadam"),
    batches=(32, 128, 512),
    tricks=False,
)
