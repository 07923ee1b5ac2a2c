"""Healthy trainings of embeddings, most rows of which have no gradient in a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, SparseAdam

from galleries.health.faulty_parts import Learner, loader, sgd, stack, tokens
from galleries.health.training import Case, Training


def _ratings(seed: int, count: int = 8192) -> tuple[Tensor, Tensor, Tensor]:
    source = Generator().manual_seed(7000 + seed)
    users, items = torch.randn(40, 4, generator=source), torch.randn(60, 4, generator=source)
    user, item = torch.randint(40, (count,), generator=source), torch.randint(60, (count,), generator=source)
    return user, item, (users[user] * items[item]).sum(1) / 2


class Recommender(Learner):
    """Has sparse embeddings with SparseAdam, and dense layers with AdamW."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.users, self.items = nn.Embedding(40, 16, sparse=True), nn.Embedding(60, 16, sparse=True)
        self.trunk, self.head = stack(48, 64, 2), nn.Linear(64, 1)

    def loss(self, batch: Any) -> Tensor:
        user, item, rating = batch
        left, right = self.users(user), self.items(item)
        return functional.mse_loss(self.head(self.trunk(torch.cat([left, right, left * right], 1))).squeeze(1), rating)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        self.log("train_loss", loss)

    def configure_optimizers(self) -> Any:
        rare = [self.users.weight, self.items.weight]
        return [SparseAdam(rare, lr=2e-2), AdamW([*self.trunk.parameters(), *self.head.parameters()], lr=3e-3)], []


def recommender(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Recommender(), loader(*_ratings(seed), seed=seed, batch=64))


class Factors(Learner):
    """Factors a matrix of ratings with dense gradients of embeddings, by SGD."""

    def __init__(self) -> None:
        super().__init__(sgd(0.5, momentum=0.9))
        self.users, self.items = nn.Embedding(40, 8), nn.Embedding(60, 8)
        for embedding in (self.users, self.items):
            nn.init.normal_(embedding.weight, std=0.5)

    def loss(self, batch: Any) -> Tensor:
        user, item, rating = batch
        return functional.mse_loss((self.users(user) * self.items(item)).sum(1), rating)


def factors(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Factors(), loader(*_ratings(seed), seed=seed, batch=64))


class SkipGram(Learner):
    """Tells neighbours of a token from random tokens, with SparseAdam alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Embedding(16, 16, sparse=True), nn.Embedding(16, 16, sparse=True)
        for embedding in (self.inner, self.outer):
            nn.init.normal_(embedding.weight, std=0.25)

    def loss(self, batch: Any) -> Tensor:
        (sequence,) = batch
        token, following = self.inner(sequence[:, :-1]), self.outer(sequence[:, 1:])
        other = self.outer(torch.randint(16, (*sequence[:, 1:].shape, 3)))
        near, far = (token * following).sum(-1), (token[..., None, :] * other).sum(-1)
        return functional.softplus(-near).mean() + functional.softplus(far).sum(-1).mean()

    def configure_optimizers(self) -> Any:
        return SparseAdam(list(self.parameters()), lr=1e-2)


def skip_gram(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(SkipGram(), loader(*tokens(seed), seed=seed, batch=16))


TRAININGS = [
    Training("embedding-sparse", "embedding", recommender, 400, "set", None, "Sparse embeddings beside dense layers."),
    Training("embedding-factors", "embedding", factors, 400, "held", None, "A matrix of ratings is factored by SGD."),
    Training("embedding-skip-gram", "embedding", skip_gram, 250, "set", None, "Vectors of tokens by negative sampling."),
]
