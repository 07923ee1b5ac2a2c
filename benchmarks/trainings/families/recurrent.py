"""Recurrent networks that predict the next token of a chain, or the sum of marked numbers of a sequence.

Healthy: of a chain, the cross entropy on fresh sequences is at most 75 % of that of the tokens' frequencies. Of sums, the
squared error is at most 75 % of their variance. Either way, that is a margin of 0.25.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from benchmarks.trainings.families.family import Family
from benchmarks.trainings.parts import cross_entropy, dropouts, learned, margin, predicted, seeded
from benchmarks.trainings.sequences import chains, token_margin
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

_KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "task": random.choice(["chain", "sum"]),
        "kind": random.choice(["lstm", "lstm", "gru", "rnn"]),
        "vocabulary": random.choice([6, 10, 16]),
        "length": random.choice([6, 10, 16]),
        "width": random.choice([16, 32, 48]),
        "depth": random.choice([1, 1, 2]),
    }


class Recurrent(nn.Module):
    """An embedding of tokens or a projection of numbers, recurrent layers, and a head at each step or at the last one."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        width, self.is_chain = spec["width"], spec["task"] == "chain"
        self.entry = nn.Embedding(spec["vocabulary"], width) if self.is_chain else nn.Linear(2, width)
        self.recurrent = _KINDS[spec["kind"]](width, width, spec["depth"], batch_first=True)
        self.drop = nn.Sequential(*dropouts(spec))
        self.head = nn.Linear(width, spec["vocabulary"] if self.is_chain else 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, _ = self.recurrent(self.entry(inputs))
        return self.head(self.drop(outputs if self.is_chain else outputs[:, -1]))


def data(spec: Spec, purpose: str) -> tuple[Tensor, Tensor]:
    """1,024 sequences to train on, or 512 fresh ones, each with its targets."""
    count = 1024 if purpose == "train" else 512
    if spec["task"] == "chain":
        sequences = chains(spec, purpose, count)
        return sequences[:, :-1], sequences[:, 1:]
    source = spec.source(purpose, of_task=True)
    numbers = torch.rand(count, spec["length"], generator=source)
    marks = (torch.rand(count, spec["length"], generator=source) < 0.4).float()
    return torch.stack([numbers, marks], 2), (numbers * marks).sum(1, keepdim=True)


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    criterion = cross_entropy if spec["task"] == "chain" else nn.functional.mse_loss
    return learned(spec, Recurrent(spec), criterion, *data(spec, "train"))


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the loss of a constant prediction that the model has removed on fresh sequences."""
    inputs, targets = data(spec, "fresh")
    outputs = predicted(module, inputs)
    if spec["task"] == "chain":
        return token_margin(outputs, targets)
    return margin((outputs - targets).double().square().mean(), targets.double().var(unbiased=False))


FAMILY = Family(
    "recurrent",
    0.25,
    _draw,
    make,
    measure,
    ("natural",),
    pace=2.0,
    optimizers=("adam", "adamw", "nadam", "radam", "adamax", "rmsprop", "momentum", "adagrad"),
    activations=("tanh",),
    initialisations=("default",),
    batches=(16, 32, 64),
)
