"""Networks that learn by CTC to write the symbols of a noisy sequence of frames, in which each symbol takes some frames.

Healthy: on fresh sequences, the number of errors (symbols that are left out, added or wrong) is at most 60 % of that of writing
nothing.
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
from benchmarks.trainings.parts import ACTIVATIONS, dropouts, learned, margin, predicted, seeded
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

_FEATURES = 8


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "symbols": random.choice([3, 5]),
        "length": random.choice([3, 5]),
        "frames": random.choice([2, 3]),
        "width": random.choice([24, 48]),
        "kind": random.choice(["lstm", "gru", "convolution"]),
        "noise": round(random.uniform(0.1, 0.4), 2),
    }


class Writer(nn.Module):
    """A recurrent layer in both directions, or two convolutions, and logits of symbols, of which 0 is the blank."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        width, self.is_recurrent = spec["width"], spec["kind"] != "convolution"
        if self.is_recurrent:
            kind = nn.LSTM if spec["kind"] == "lstm" else nn.GRU
            self.body: nn.Module = kind(_FEATURES, width, batch_first=True, bidirectional=True)
        else:
            layers = [nn.Conv1d(_FEATURES, 2 * width, 3, padding=1), ACTIVATIONS[spec.activation]()]
            self.body = nn.Sequential(*layers, nn.Conv1d(2 * width, 2 * width, 3, padding=1), ACTIVATIONS[spec.activation]())
        self.drop = nn.Sequential(*dropouts(spec))
        self.head = nn.Linear(2 * width, spec["symbols"] + 1)

    def forward(self, frames: Tensor) -> Tensor:
        if self.is_recurrent:
            hidden, _ = self.body(frames)
        else:
            hidden = self.body(frames.transpose(1, 2)).transpose(1, 2)
        return self.head(self.drop(hidden))


def _loss(logits: Tensor, symbols: Tensor) -> Tensor:
    logits = logits if logits.dtype == torch.float64 else logits.float()
    frames, written = (torch.full((len(symbols),), each.shape[1]) for each in (logits, symbols))
    return functional.ctc_loss(logits.log_softmax(2).transpose(0, 1), symbols, frames, written)


def data(spec: Spec, purpose: str) -> tuple[Tensor, Tensor]:
    """1,024 sequences of frames to train on, or 256 fresh ones, and their symbols, of which each differs from the next one."""
    count, source = 1024 if purpose == "train" else 256, spec.source(purpose, of_task=True)
    looks = torch.randn(spec["symbols"] + 1, _FEATURES, generator=spec.source("looks", of_task=True))
    steps = torch.randint(1, spec["symbols"], (count, spec["length"]), generator=source)
    symbols = 1 + steps.cumsum(1) % spec["symbols"]
    frames = looks[symbols.repeat_interleave(spec["frames"], 1)]
    return frames + spec["noise"] * torch.randn(frames.shape, generator=source), symbols


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    return learned(spec, Writer(spec), _loss, *data(spec, "train"))


def errors(written: list[int], right: list[int]) -> int:
    """The number of symbols that must be added, removed or replaced.

    Example:
        >>> errors([1, 2, 2], [1, 2]), errors([], [3, 1])
        (1, 2)
    """
    row = list(range(len(right) + 1))
    for index, symbol in enumerate(written, 1):
        last, row[0] = row[0], index
        for other, wanted in enumerate(right, 1):
            last, row[other] = row[other], min(row[other] + 1, row[other - 1] + 1, last + (symbol != wanted))
    return row[-1]


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the errors of writing nothing that the model does not make."""
    frames, symbols = data(spec, "fresh")
    logits = predicted(module, frames)
    if not bool(logits.isfinite().all()):
        return float("-inf")
    count = 0
    for best, right in zip(logits.argmax(2), symbols, strict=True):
        written = best.unique_consecutive()
        count += errors(written[written > 0].tolist(), right.tolist())
    return margin(float(count), float(symbols.numel()))


FAMILY = Family(
    "ctc",
    0.4,
    _draw,
    make,
    measure,
    ("natural",),
    pace=3.0,
    optimizers=("adam", "adam-fused", "adamw", "nadam", "radam", "adamax", "rmsprop"),
    activations=("relu", "gelu", "silu", "tanh"),
    initialisations=("default",),
    batches=(16, 32, 64),
)
