"""Faults of rates: of the optimizer, its decay, and of dropout."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.trainings.families import FAMILIES
from benchmarks.trainings.mutators.mutator import Mutator
from benchmarks.trainings.optimizers import OPTIMIZERS
from benchmarks.trainings.spec import Spec

UNSTABLE = ("UpdateTooLarge", "LossDiverged", "WeightGrowth", "ExplodingGradient", "LossSpike", "GradientSpike", "NonFinite")
"""The rules any of which names a training whose steps are too large."""


def _multiplied(spec: Spec, factor: float) -> Spec:
    return replace(spec, rate=spec.rate * factor)


def _decaying(spec: Spec, share: float) -> Spec:
    """The weights lose this share of themselves in each step, if the decay is decoupled."""
    return replace(spec, weight_decay=share / spec.rate)


def _dropping(spec: Spec, share: float) -> Spec:
    return replace(spec, dropout=share)


MUTATORS = (
    Mutator(
        "rate-too-high",
        "The learning rate is a multiple of what it should be.",
        "pattern",
        (3, 10, 30, 100, 1000),
        UNSTABLE,
        ("LearningRateTooHigh",),
        ("update", "ratio"),
        change=_multiplied,
    ),
    Mutator(
        "rate-too-low",
        "The learning rate is a fraction of what it should be.",
        "pattern",
        (0.1, 0.03, 0.01, 1e-3, 1e-4),
        ("UpdateTooSmall", "LossConstant", "UnchangedParameter", "LostUpdates"),
        ("LearningRateTooLow",),
        ("update", "ratio"),
        change=_multiplied,
        fits=lambda spec: spec.optimizer != "rprop",
    ),
    Mutator(
        "decay-too-large",
        "In each step, the weights lose a large share of themselves by weight decay.",
        "fact",
        (1e-3, 0.01, 0.05, 0.2, 0.5),
        ("WeightDecayTooLarge",),
        ("WeightDecayDominates",),
        ("fact", "optimizers"),
        change=_decaying,
        fits=lambda spec: OPTIMIZERS[spec.optimizer].decays,
    ),
    Mutator(
        "dropout-too-high",
        "Dropout lets hardly anything through.",
        "fact",
        (0.6, 0.75, 0.85, 0.93, 0.98),
        ("DropoutTooHigh",),
        ("DropoutTooHigh",),
        ("output", "zero_fraction"),
        change=_dropping,
        fits=lambda spec: FAMILIES[spec.family].drops,
    ),
)
