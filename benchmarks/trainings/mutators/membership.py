"""Faults of membership and modes: layers that are frozen, that no optimizer holds, or that are in evaluation mode."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from benchmarks.trainings.layers import hidden_layers
from benchmarks.trainings.mutators.mutator import Mutator, Planted, after, is_usual
from benchmarks.trainings.spec import Spec
from benchmarks.trainings.tricks import tied
from galleries.health.training import Case


def _share_of(case: Case, share: float) -> list[tuple[str, nn.Module]]:
    layers = hidden_layers(case.module)
    return layers[: max(1, math.ceil(share * len(layers)))]


def _freeze(case: Case, spec: Spec, share: float) -> Planted:
    chosen = _share_of(case, share)
    for _, layer in chosen:
        layer.requires_grad_(False)
    return Planted(case, tuple(f"{name}*" for name, _ in chosen))


def _forget(case: Case, spec: Spec, share: float) -> Planted:
    module: Any = case.module
    chosen = _share_of(case, share)
    held = module.held
    forgotten = {id(parameter) for _, layer in chosen for parameter in layer.parameters()}

    module.held = lambda part: (each for each in held(part) if id(each) not in forgotten)
    return Planted(case, tuple(f"{name}*" for name, _ in chosen))


def _evaluate(case: Case, spec: Spec, share: float) -> Planted:
    """Put batch norms into evaluation mode before each batch, as a validation that forgets `train()` leaves them."""
    norms = [(name, each) for name, each in case.module.named_modules() if isinstance(each, (nn.BatchNorm1d, nn.BatchNorm2d))]
    chosen = norms[: max(1, math.ceil(share * len(norms)))]

    def evaluate(*args: Any) -> None:
        for _, norm in chosen:
            norm.eval()

    after(case.module, "on_train_batch_start", evaluate)
    return Planted(case, tuple(f"{name}*" for name, _ in chosen))


def _slow_down(case: Case, spec: Spec, momentum: float) -> Planted:
    """Let the running statistics of batch norms take this share of each batch."""
    norms = [(name, each) for name, each in case.module.named_modules() if isinstance(each, (nn.BatchNorm1d, nn.BatchNorm2d))]
    for _, norm in norms:
        norm.momentum = momentum
    return Planted(case, tuple(f"{name}*" for name, _ in norms))


def _has_batch_norm(spec: Spec) -> bool:
    return dict(spec.shape).get("norm") == "batch"


def _has_layers(spec: Spec) -> bool:
    return is_usual(spec) and not tied(spec) and "frozen-first" not in spec.tricks


MUTATORS = (
    Mutator(
        "frozen-part",
        "A share of the hidden layers, the first ones, has no `requires_grad`.",
        (0.01, 0.3, 0.5, 0.7, 1.0),
        plant=_freeze,
        fits=_has_layers,
    ),
    Mutator(
        "forgotten-part",
        "The optimizer does not hold a share of the hidden layers, the first ones.",
        (0.01, 0.3, 0.5, 0.7, 1.0),
        plant=_forget,
        fits=_has_layers,
    ),
    Mutator(
        "norms-in-evaluation",
        "A share of the batch norms is in evaluation mode, with the statistics with which they began.",
        (0.01, 0.3, 0.5, 0.7, 1.0),
        plant=_evaluate,
        fits=_has_batch_norm,
    ),
    Mutator(
        "norm-statistics-slow",
        "The running statistics of batch norms take a tiny share of each batch, so that evaluation uses old ones.",
        (0.02, 0.01, 3e-3, 1e-3, 0.0),
        plant=_slow_down,
        fits=_has_batch_norm,
    ),
)
