"""Embedding tables of users and items that learn which of two items a user prefers.

Healthy: of fresh pairs of items, the model orders at least 70 % as the user does (twice the share less one: a margin of 0.4).
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
from benchmarks.trainings.optimizers import has_sparse_tables
from benchmarks.trainings.parts import learned, predicted, seeded
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "users": random.choice([50, 100, 200]),
        "items": random.choice([30, 60]),
        "width": random.choice([4, 8, 16]),
        "biases": random.random() < 0.5,
        "start": random.choice([0.1, 0.3, 1.0]),
        "sparse": random.random() < 0.5,
    }


class Tables(nn.Module):
    """A vector for each user and item, and perhaps a bias for each item."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        is_sparse = has_sparse_tables(spec)
        self.users = nn.Embedding(spec["users"], spec["width"], sparse=is_sparse)
        self.items = nn.Embedding(spec["items"], spec["width"], sparse=is_sparse)
        self.biases = nn.Embedding(spec["items"], 1, sparse=is_sparse) if spec["biases"] else None
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=spec["start"])
        if self.biases is not None:
            nn.init.zeros_(self.biases.weight)

    def forward(self, triples: Tensor) -> Tensor:
        """How much more each user likes the first item than the second."""
        user, first, second = triples.unbind(1)
        difference = self.items(first) - self.items(second)
        score = (self.users(user) * difference).sum(1)
        return score if self.biases is None else score + (self.biases(first) - self.biases(second)).squeeze(1)


def _logistic(scores: Tensor, signs: Tensor) -> Tensor:
    return functional.softplus(-signs * scores).mean()


def _hinge(scores: Tensor, signs: Tensor) -> Tensor:
    return (1 - signs * scores).relu().mean()


def _data(spec: Spec, purpose: str) -> tuple[Tensor, Tensor]:
    count, task = 8192 if purpose == "train" else 2048, spec.source("tastes", of_task=True)
    tastes = torch.randn(spec["users"], 3, generator=task)
    values = torch.randn(spec["items"], 3, generator=task)
    popularity = torch.randn(spec["items"], generator=task)
    source = spec.source(purpose, of_task=True)
    sizes = (spec["users"], spec["items"], spec["items"])
    triples = torch.stack([torch.randint(size, (count,), generator=source) for size in sizes], 1)
    triples = triples[triples[:, 1] != triples[:, 2]]
    user, first, second = triples.unbind(1)
    likes = (tastes[user] * (values[first] - values[second])).sum(1) + popularity[first] - popularity[second]
    return triples, likes.sign()


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    criterion = _logistic if spec.loss == "logistic" else _hinge
    return learned(spec, Tables(spec), criterion, *_data(spec, "train"))


def measure(module: LightningModule, spec: Spec) -> float:
    """Twice the share of fresh pairs in the right order, less one."""
    triples, signs = _data(spec, "fresh")
    scores = predicted(module, triples)
    return float((scores.sign() * signs).double().mean()) if bool(scores.isfinite().all()) else -1.0


FAMILY = Family(
    "ranking",
    0.4,
    _draw,
    make,
    measure,
    ("logistic", "hinge"),
    pace=10.0,
    optimizers=("adam", "adamw", "adamax", "rmsprop", "adagrad", "adagrad", "nadam", "sparse-adam"),
    activations=("none",),
    initialisations=("default",),
    batches=(64, 128, 256),
    drops=False,
    tricks=False,
)
