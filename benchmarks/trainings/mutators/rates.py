"""Faults of rates: of the optimizer, its decay, and of dropout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import functional

from benchmarks.trainings.families import FAMILIES
from benchmarks.trainings.layers import DENSE, hidden_layers
from benchmarks.trainings.mutators.mutator import Mutator, Planted
from benchmarks.trainings.optimizers import OPTIMIZERS
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _multiplied(spec: Spec, factor: float) -> Spec:
    return replace(spec, rate=spec.rate * factor)


def _decaying(spec: Spec, share: float) -> Spec:
    """The weights lose this share of themselves in each step, if the decay is decoupled."""
    return replace(spec, weight_decay=share / spec.rate)


def _drop_by_function(case: Case, spec: Spec, share: float) -> Planted:
    """Drop elements of the output of the last hidden layer by `functional.dropout`, which is no module."""
    name, layer = hidden_layers(case.module, DENSE)[-1]

    def drop(module: Any, args: Any, output: Tensor) -> Tensor:
        return functional.dropout(output, share, module.training)

    layer.register_forward_hook(drop)
    return Planted(case, (f"{name}*",))


def _dropping(spec: Spec, share: float) -> Spec:
    return replace(spec, dropout=share)


MUTATORS = (
    Mutator(
        "rate-too-high",
        "The learning rate is a multiple of what it should be.",
        (3, 10, 30, 100, 1000),
        change=_multiplied,
    ),
    Mutator(
        "rate-too-low",
        "The learning rate is a fraction of what it should be.",
        (0.1, 0.03, 0.01, 1e-3, 1e-4),
        change=_multiplied,
        fits=lambda spec: not OPTIMIZERS[spec.optimizer].whole,
    ),
    Mutator(
        "decay-too-large",
        "In each step, the weights lose a large share of themselves by weight decay.",
        (1e-3, 0.01, 0.05, 0.2, 0.5),
        change=_decaying,
        fits=lambda spec: OPTIMIZERS[spec.optimizer].decays,
    ),
    Mutator(
        "dropout-too-high",
        "Dropout lets hardly anything through.",
        (0.6, 0.75, 0.85, 0.93, 0.98),
        change=_dropping,
        fits=lambda spec: FAMILIES[spec.family].drops,
    ),
    Mutator(
        "dropout-by-function",
        "A dropout that is no module lets hardly anything of the last hidden layer through.",
        (0.6, 0.75, 0.85, 0.93, 0.98),
        plant=_drop_by_function,
        fits=lambda spec: spec.family in ("mlp", "regression", "cnn", "resnet", "autoencoder", "contrastive"),
    ),
)
