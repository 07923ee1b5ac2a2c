"""Judges what another package said of a training of the gallery.

The map of kinds was written from the documentation of the packages, not from results, so that it suits none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from galleries.health.training import Training

ALARMS = frozenset({"warning", "warn", "critical", "error", "fatal"})
"""The severities of an alarm, in the words of each package."""

WORST = frozenset({"critical", "error", "fatal"})
"""Those of them that say more than a warning."""

HINTS = frozenset(
    {
        "TA200 Tensor Core Alignment",
        "TA201 Suboptimal Memory Layout",
        "TA202 Model Device Placement",
        "TA203 Precision Check (AMP)",
        "TA400 Redundant Bias before Norm",
    }
)
"""What a package says of speed and memory, with the severity of an alarm. It is none of the health of a training."""


class Said(NamedTuple):
    """One kind of statement about one training."""

    kind: str
    severity: str
    count: int
    first: int
    last: int
    places: list[str]


@dataclass(frozen=True)
class Fit:
    """The faults that a kind of statement names, by what the gallery expects to be said of them.

    Args:
        rules: it fits a fault of which one of these health rules is expected.
        causes: or of which one of these causes is expected.
        trainings: or one of these trainings, of which no health rule is expected.
    """

    rules: frozenset[str] = frozenset()
    causes: frozenset[str] = frozenset()
    trainings: frozenset[str] = frozenset()


def _fit(rules: str = "", causes: str = "", trainings: str = "") -> Fit:
    return Fit(frozenset(rules.split()), frozenset(causes.split()), frozenset(trainings.split()))


KINDS: Mapping[str, Fit] = {
    # torchmortem: the titles of its findings
    "Vanishing gradients detected": _fit(
        "VanishingGradient NoGradient", "GradientCut ActivationsSaturated InitializationTooSmall"
    ),
    "Exploding gradients detected": _fit(
        "ExplodingGradient GradientSpike", "LearningRateTooHigh InitializationTooLarge GradientsNotCleared BadBatch"
    ),
    "Gradient stalling": _fit("NoGradient VanishingGradient DeadLayer", "GradientCut ActivationsDead"),
    "Dead units": _fit("DeadUnits DeadLayer", "ActivationsDead"),
    "Activation saturation": _fit("SaturatedActivation", "ActivationsSaturated"),
    "Update ratio too low": _fit(
        "UpdateTooSmall LostUpdates LearningRateZero UnchangedParameter", "LearningRateTooLow ClippingStopsLearning"
    ),
    "Update ratio too high": _fit("UpdateTooLarge", "LearningRateTooHigh"),
    "Training divergence detected": _fit("LossDiverged", "LearningRateTooHigh"),
    "Loss plateau detected": _fit("LossConstant"),
    "Rank collapse": _fit("UnitCollapse ConstantOutput ScaleCollapse", "UnitCollapsed"),
    "Weight norm explosion": _fit("WeightGrowth", "LearningRateTooHigh"),
    "Stagnant weight norms": _fit(
        "UnchangedParameter UpdateTooSmall LostUpdates LearningRateZero", "LearningRateTooLow ParametersForgotten GradientCut"
    ),
    "Inter-layer weight norm imbalance": _fit("OddInitialization PoorInitialization WeightGrowth", "InitializationTooLarge"),
    "High gradient noise (low SNR)": _fit("GradientSpike", "BadBatch"),
    # torch-audit: its rules
    "TA100 NaN or Inf Detected": _fit("NonFinite"),
    "TA102 Gradient Explosion": _fit(
        "ExplodingGradient GradientSpike", "LearningRateTooHigh InitializationTooLarge GradientsNotCleared BadBatch"
    ),
    "TA103 Dead Units (Zero Grads)": _fit("NoGradient DeadUnits DeadLayer", "GradientCut ActivationsDead"),
    "TA104 No Gradients Found": _fit("NoGradient", "GradientCut"),
    "TA105 Activation Collapse (Dead Neurons)": _fit("DeadUnits DeadLayer", "ActivationsDead"),
    "TA300 Input Device Mismatch": _fit(),
    "TA301 Suspicious Data Range": _fit("InputNotNormalised", "DataNotNormalised BadBatch"),
    "TA302 Flat/Empty Data": _fit("", "BadBatch", "targets-constant"),
    "TA303 Suspicious Input Layout (NHWC vs NCHW)": _fit(),
    "TA304 Tiny Batch Size": _fit("", "", "batch-norm-of-two"),
    "TA305 Invalid Input Values": _fit(),
    "TA401 AdamW vs Adam": _fit(),
    "TA402 Weight Decay on Norm/Bias": _fit(),
    "TA403 Weight Decay on Embeddings": _fit(),
    "TA404 Even Kernel Size": _fit(),
    "TA405 Dead Convolution Filters": _fit("OddInitialization DeadLayer", "InitializationTooSmall"),
    "TA500 Unused Layer (Zombie)": _fit("NeverCalled NotCalledAnyMore"),
    "TA501 Stateful Layer Reuse": _fit("", "", "tied-by-mistake"),
}


def alarms(line: Mapping[str, Any]) -> list[Said]:
    """What was said of a training as a warning or worse, hints on speed and memory left out."""
    said = [Said(*each) for each in line["said"]]
    return [each for each in said if each.severity in ALARMS and each.kind not in HINTS]


def fitting(line: Mapping[str, Any], training: Training) -> list[Said]:
    """The alarms whose kind fits the fault of the training, and that were still given at its onset or after it.

    The kinds of lightning-hooks are health rules: each fits where the gallery expects it. No place is asked for.
    """
    expected = training.expects
    if expected is None:
        return []
    return [
        each
        for each in alarms(line)
        if each.last >= expected.onset
        and (fit := KINDS.get(each.kind, Fit(rules=frozenset({each.kind}))))
        and (fit.rules & set(expected.rules) or expected.cause in fit.causes or training.name in fit.trainings)
    ]
