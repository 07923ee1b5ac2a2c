"""Faults of structure in masks: padding that is read, and tokens that see what they should predict."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.health.faulty_parts import (
    Block,
    Language,
    Learner,
    adamw,
    loader,
    tokens,
)
from galleries.health.training import Case, Expectation, Training


class Padded(Learner):
    """Classifies sequences of which the last tokens are padding by their pooled states; its mask is the wrong way round."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.embedding, self.block, self.head = nn.Embedding(17, 32), Block(32, 4), nn.Linear(32, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        attend = inputs == 16  # is true of padding
        hidden = self.block(self.embedding(inputs), attend[:, None, None])
        return (hidden * attend[..., None]).sum(1) / attend.sum(1, keepdim=True)

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(self.head(self(inputs)), labels)


def mask_inverted(seed: int) -> Case:
    torch.manual_seed(seed)
    (sequences,) = tokens(seed)
    labels = sequences[:, 0] // 4
    lengths = torch.randint(8, 20, (len(sequences), 1), generator=torch.Generator().manual_seed(seed))
    padded = sequences.masked_fill(torch.arange(24) >= lengths, 16)
    return Case(Padded(), loader(padded, labels, seed=seed))


class SeesTheFuture(Language):
    """Attends to every token, also to the one that it should predict."""

    def mask(self, length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool)


def sees_the_future(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(SeesTheFuture(), loader(*tokens(seed), seed=seed, batch=16))


class CausalInverted(Language):
    """Attends to the tokens after its own only, and never to those before."""

    def mask(self, length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool).triu()


def causal_inverted(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(CausalInverted(), loader(*tokens(seed), seed=seed, batch=16))


TRAININGS = [
    Training(
        "padding-mask-inverted",
        "structure",
        mask_inverted,
        200,
        "held",
        Expectation("pattern", ("LossConstant", "ConstantOutput")),
        "A mask is the wrong way round, so that a classifier of sequences sees only their padding.",
    ),
    Training(
        "sees-the-future",
        "structure",
        sees_the_future,
        250,
        "set",
        Expectation("invisible", seen_by="the check before the run: a token's loss depends on itself as an input"),
        "A language model without its causal mask reads what it should predict.",
    ),
    Training(
        "causal-mask-inverted",
        "structure",
        causal_inverted,
        250,
        "held",
        Expectation(
            "invisible", seen_by="the check before the run: a token's loss depends on later tokens and on no earlier one"
        ),
        "The causal mask of a language model is the wrong way round.",
    ),
]
