"""Faults of the loss: its sign and its scale."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from benchmarks.trainings.mutators.mutator import Mutator, Planted
from benchmarks.trainings.mutators.rates import UNSTABLE
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _multiply(case: Case, factor: float) -> Planted:
    loss = case.module.loss

    def multiplied(batch: Any) -> Tensor:
        return factor * loss(batch)

    case.module.loss = multiplied
    return Planted(case)


def _turn(case: Case, spec: Spec, share: float) -> Planted:
    return _multiply(case, 1 - 2 * share)


def _enlarge(case: Case, spec: Spec, factor: float) -> Planted:
    return _multiply(case, factor)


MUTATORS = (
    Mutator(
        "sign-turned",
        "A share of the loss is added with the wrong sign; from a half on, it is maximised.",
        "pattern",
        (0.5, 0.52, 0.6, 0.75, 1.0),
        ("LossUnbounded", "LossDiverged", "LossConstant", "NonFinite", "NoGradient"),
        (),
        ("loss", "mean"),
        plant=_turn,
    ),
    Mutator(
        "sum-for-mean",
        "The loss is a multiple of the mean, as a sum over samples or tokens is.",
        "pattern",
        (10, 100, 1e3, 1e4, 1e6),
        UNSTABLE,
        ("LearningRateTooHigh",),
        ("grad", "norm"),
        plant=_enlarge,
        fits=lambda spec: spec.optimizer in ("sgd", "momentum", "nesterov"),
    ),
)
