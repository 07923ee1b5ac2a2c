"""Transformers with an encoder and a decoder, pre-norm and post-norm, that write a sequence after they have read another one.

The sequence to write is the one that was read: reversed, sorted, or with each token replaced by another one. Healthy: the
cross entropy on fresh sequences, with the right tokens before each, is at most 75 % of that of the frequencies of the tokens (a
margin of 0.25).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from benchmarks.trainings.families.family import Family
from benchmarks.trainings.parts import CLASSIFICATION, Learner, learned, predicted, seeded
from benchmarks.trainings.sequences import token_margin
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "task": random.choice(["reverse", "sort", "replace"]),
        "vocabulary": random.choice([6, 10]),
        "length": random.choice([5, 8]),
        "width": random.choice([32, 48]),
        "heads": random.choice([2, 4]),
        "pre": random.random() < 0.5,
        "shared": random.random() < 0.5,
    }


class Translator(nn.Module):
    """Embeddings of tokens, which encoder and decoder may share, and of positions, a transformer of PyTorch, and a head."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        width, vocabulary = spec["width"], spec["vocabulary"] + 1
        self.read = nn.Embedding(vocabulary, width)
        self.written = self.read if spec["shared"] else nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(spec["length"], width)
        options = {"dropout": spec.dropout, "activation": spec.activation, "batch_first": True, "norm_first": spec["pre"]}
        self.transformer = nn.Transformer(width, spec["heads"], 1, 1, 2 * width, **options)
        self.head = nn.Linear(width, spec["vocabulary"])
        for embedding in (self.read, self.written, self.positions):
            nn.init.normal_(embedding.weight, std=0.5)

    def forward(self, pairs: Tensor) -> Tensor:
        """Logits of the tokens to write, from those to read, and those written before each: int64 [batch, 2, length]."""
        source, before = pairs.unbind(1)
        places = self.positions(torch.arange(source.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(source.shape[1], dtype=places.dtype)
        hidden = self.transformer(self.read(source) + places, self.written(before) + places, tgt_mask=mask, tgt_is_causal=True)
        return self.head(hidden)


def data(spec: Spec, purpose: str) -> tuple[Tensor, Tensor]:
    """2,048 pairs to train on, or 512 fresh ones, each with the tokens to write."""
    count, vocabulary = 2048 if purpose == "train" else 512, spec["vocabulary"]
    source = torch.randint(vocabulary, (count, spec["length"]), generator=spec.source(purpose, of_task=True))
    if spec["task"] == "replace":
        target = torch.randperm(vocabulary, generator=spec.source("code", of_task=True))[source]
    else:
        target = source.flip(1) if spec["task"] == "reverse" else source.sort(1).values
    start = torch.full((count, 1), vocabulary)
    return torch.stack([source, torch.cat([start, target[:, :-1]], 1)], 1), target


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    return learned(spec, Translator(spec), CLASSIFICATION[spec.loss], *data(spec, "train"), learner=Learner)


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the cross entropy of the frequencies of tokens that the model has removed on fresh sequences."""
    pairs, targets = data(spec, "fresh")
    return token_margin(predicted(module, pairs), targets)


FAMILY = Family(
    "encoder-decoder",
    0.25,
    _draw,
    make,
    measure,
    ("cross-entropy", "cross-entropy", "smoothed"),
    optimizers=("adam", "adam-fused", "adamw", "adamw-fast", "adamw-foreach", "nadam", "radam", "adamax", "muon"),
    activations=("relu", "gelu"),
    initialisations=("default",),
    batches=(16, 32, 64),
)
