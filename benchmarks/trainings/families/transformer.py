"""Small transformers, pre-norm and post-norm, that learn made sequences.

The task is the next token of a Markov chain, or the reversal of a sequence. Healthy: the cross entropy on fresh sequences is at
most 75 % of that of the frequencies of the tokens (a margin of 0.25); a Markov chain has no more than about 0.6 to give.
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
from benchmarks.trainings.parts import ACTIVATIONS, CLASSIFICATION, Learner, dropouts, initialise, loader, predicted, seeded
from benchmarks.trainings.sequences import chains, token_margin
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "task": random.choice(["chain", "chain", "reverse"]),
        "vocabulary": random.choice([8, 12, 16]),
        "length": random.choice([8, 12, 16]),
        "width": random.choice([24, 32, 48]),
        "heads": random.choice([1, 2, 4]),
        "depth": random.choice([1, 2, 3]),
        "pre": random.random() < 0.7,
        "tied": random.random() < 0.3,
        "zero": random.random() < 0.25,
        "drop_path": random.choice([0.0, 0.0, 0.0, 0.2]),
    }


class Layer(nn.Module):
    """Attention and a feed-forward network, each beside the identity, with a norm before or after."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        width = spec["width"]
        self.heads, self.is_pre, self.is_causal = spec["heads"], spec["pre"], spec["task"] == "chain"
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop_path = spec["drop_path"]
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), ACTIVATIONS[spec.activation](), *dropouts(spec), nn.Linear(2 * width, width)
        )

    def attention(self, inputs: Tensor) -> Tensor:
        parts = self.qkv(inputs).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and self.drop_path and float(torch.rand(())) < self.drop_path:
            return inputs
        if self.is_pre:
            inputs = inputs + self.attention(self.norm1(inputs))
            return inputs + self.feed(self.norm2(inputs))
        inputs = self.norm1(inputs + self.attention(inputs))
        return self.norm2(inputs + self.feed(inputs))


class Transformer(nn.Module):
    """Embeddings of tokens and positions, layers, a norm if those are pre-norm, and a head."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        vocabulary, width = spec["vocabulary"], spec["width"]
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(spec["length"], width)
        self.layers = nn.Sequential(*(Layer(spec) for _ in range(spec["depth"])))
        self.norm = nn.Sequential(*([nn.LayerNorm(width)] if spec["pre"] else []))
        self.head = nn.Linear(width, vocabulary)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=width**-0.5 if spec["tied"] else 0.5)
        if spec["tied"]:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1])
        return self.head(self.norm(self.layers(self.tokens(tokens) + self.positions(positions))))


def data(spec: Spec, purpose: str) -> tuple[Tensor, Tensor]:
    """1,024 sequences to train on, or 512 fresh ones, each with its targets."""
    count = 1024 if purpose == "train" else 512
    if spec["task"] == "chain":
        sequences = chains(spec, purpose, count)
        return sequences[:, :-1], sequences[:, 1:]
    sequences = torch.randint(spec["vocabulary"], (count, spec["length"]), generator=spec.source(purpose, of_task=True))
    return sequences, sequences.flip(1)


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    model = Transformer(spec)
    if not spec["tied"]:
        initialise(model, spec.initialisation)
    layers: Any = model.layers if spec["zero"] else ()
    for layer in layers:
        nn.init.zeros_(layer.out.weight)
        nn.init.zeros_(layer.feed[-1].weight)
    return Case(Learner(spec, model, CLASSIFICATION[spec.loss]), loader(spec, *data(spec, "train")))


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the cross entropy of the frequencies of tokens that the model has removed on fresh sequences."""
    inputs, targets = data(spec, "fresh")
    return token_margin(predicted(module, inputs), targets)


FAMILY = Family(
    "transformer",
    0.25,
    _draw,
    make,
    measure,
    ("cross-entropy", "cross-entropy", "smoothed"),
    optimizers=("adam", "adamw", "adamw-fast", "adamw-foreach", "adamw-fused", "nadam", "radam", "adamax", "rmsprop", "muon"),
    activations=("relu", "gelu", "silu", "mish", "leaky"),
    initialisations=("default", "default", "xavier", "truncated"),
    batches=(16, 32, 64),
)
