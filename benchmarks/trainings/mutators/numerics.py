"""Faults of number formats: too few bits for small steps, and gradients that are too small for float16."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.trainings.mutators.loss import multiply
from benchmarks.trainings.mutators.mutator import Mutator, Planted
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _in_float16(spec: Spec, factor: float) -> Spec:
    return replace(spec, precision="16-true")


def _shrink_loss(case: Case, spec: Spec, factor: float) -> Planted:
    return multiply(case, factor)


def _in_bfloat16(spec: Spec, factor: float) -> Spec:
    return replace(spec, precision="bf16-true", rate=spec.rate * factor)


def _is_simple(spec: Spec) -> bool:
    families = ("mlp", "regression", "autoencoder", "contrastive")
    return spec.family in families and spec.precision == "32-true" and not spec.tricks


MUTATORS = (
    Mutator(
        "float16-without-scaler",
        "Weights are float16, and the loss is so small that gradients are 0 in this format.",
        (1.0, 0.1, 0.01, 1e-4, 1e-6),
        change=_in_float16,
        plant=_shrink_loss,
        fits=_is_simple,
    ),
    Mutator(
        "weights-in-bfloat16",
        "Weights are bfloat16, and the rate is so small that a step is less than their last digit.",
        (1.0, 0.3, 0.1, 0.03, 0.01),
        change=_in_bfloat16,
        fits=_is_simple,
    ),
)
