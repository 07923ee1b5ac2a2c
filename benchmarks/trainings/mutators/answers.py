"""What must be said of each fault: the row or fact that must change, the rules any of which names it, and the right causes.

A changed answer changes verdicts, and no recorded training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Answer(NamedTuple):
    """What must be said of a fault.

    Args:
        shows: the tensor and the statistic, or "fact" and a field of `StepFacts`, that must change; empty if nothing that is
            measured today must. Such a fault is not yet visible.
        rules: the names of rules any of which names it.
        causes: the names of the right causes; empty if none of today's is.
    """

    shows: tuple[str, str] | tuple[()]
    rules: tuple[str, ...]
    causes: tuple[str, ...]


def _answer(shows: str, rules: str = "", causes: str = "") -> Answer:
    tensor, _, stat = shows.partition(" ")
    return Answer((tensor, stat) if shows else (), tuple(rules.split()), tuple(causes.split()))


_UNSTABLE: Final = "UpdateTooLarge LossDiverged WeightGrowth ExplodingGradient LossSpike GradientSpike NonFinite"
"""The rules any of which names a training whose steps are too large."""
_SLOW: Final = "UpdateTooSmall LossConstant UnchangedParameter LostUpdates SlowLearning"
"""The rules any of which names a training whose steps are too small."""
_SCHEDULE: Final = "ScheduleEndsEarly LearningRateFallen"
"""The rules any of which names a rate that falls too early."""

ANSWERS: Final[Mapping[str, Answer]] = {
    # Rates, optimizers and schedules
    "rate-too-high": _answer("update ratio", _UNSTABLE, "LearningRateTooHigh"),
    "rate-too-low": _answer("update ratio", _SLOW, "LearningRateTooLow"),
    "decay-too-large": _answer("fact optimizers", "WeightDecayTooLarge WeightShrinkage", "WeightDecayDominates"),
    "dropout-too-high": _answer("output zero_fraction", "DropoutTooHigh", "DropoutTooHigh"),
    "dropout-by-function": _answer("output zero_fraction", "DropoutTooHigh", "DropoutTooHigh"),
    "momentum-too-high": _answer("update norm", _UNSTABLE, "LearningRateTooHigh"),
    "betas-swapped": _answer("fact sightings", f"{_UNSTABLE} BetasSwapped", "LearningRateTooHigh BetasSwapped"),
    "eps-too-large": _answer("update ratio", _SLOW, "LearningRateTooLow"),
    "clipped-to-nothing": _answer("update ratio", f"{_SLOW} ClippingAlways", "ClippingStopsLearning"),
    "rate-falls-early": _answer("fact optimizers", f"{_SLOW} {_SCHEDULE} LearningRateZero", "LearningRateTooLow"),
    "rate-rises-late": _answer("fact optimizers", _UNSTABLE, "LearningRateTooHigh"),
    "schedule-too-fast": _answer(
        "fact optimizers", f"{_SLOW} {_SCHEDULE} ScheduleAtOtherPace LearningRateZero", "LearningRateTooLow ScheduleMismatch"
    ),
    "warm-up-endless": _answer(
        "fact optimizers", f"{_SLOW} WarmUpOutlastsFit LearningRateZero", "LearningRateTooLow ScheduleMismatch"
    ),
    # Inputs
    "column-too-large": _answer("input abs_max", "InputNotNormalised", "DataNotNormalised"),
    "inputs-far-from-zero": _answer("input mean", "InputNotNormalised", "DataNotNormalised"),
    "inputs-too-small": _answer("input rms", "InputNotNormalised", "DataNotNormalised"),
    "columns-blank": _answer("input zero_fraction", "ZeroInput DeadLayer NoGradient", "InputOfZeros"),
    "numbers-missing": _answer("input nonfinite", "NonFinite", "BadBatch"),
    # Labels and targets
    "labels-shuffled": _answer("loss mean", "TargetsChange LossConstant", "LossAtChance TargetsChange"),
    "labels-of-batch-before": _answer("loss mean", "TargetsChange LossConstant", "LossAtChance TargetsChange"),
    "labels-constant": _answer("", "TargetsConstant"),
    "classes-missing": _answer(""),
    "targets-shifted": _answer("fact sightings", "TargetsMisplaced LossConstant", "LossAtChance TargetsMisplaced"),
    "targets-are-inputs": _answer("fact sightings", "TargetsAreInputs TargetsMisplaced"),
    "targets-too-large": _answer("loss mean", "TargetsOutOfReach", "DataNotNormalised"),
    # Batches
    "bad-batch": _answer("loss mean", "NonFinite LossSpike GradientSpike LossDiverged", "BadBatch"),
    "batches-empty": _answer("input abs_max", "BatchOfZeros", "BadBatch"),
    "batches-repeated": _answer("fact sightings", "BatchesRepeat"),
    "samples-sorted": _answer("loss mean", "LossFollowsOrder LossSpike LossDiverged GradientSpike"),
    "batch-too-small": _answer("input count", f"NormStatistics {_UNSTABLE}", "LearningRateTooHigh"),
    # The loss
    "sign-turned": _answer("loss mean", "LossUnbounded LossDiverged LossConstant NonFinite NoGradient ZeroGradients"),
    "sum-for-mean": _answer("grad norm", _UNSTABLE, "LearningRateTooHigh"),
    "loss-divided-too-often": _answer("grad norm", _SLOW, "LearningRateTooLow"),
    "broadcast-in-loss": _answer("fact sightings", "LabelsFitHead LossConstant", "LossComparesAll"),
    "softmax-twice": _answer("fact sightings", "ActivationBeforeLoss LossConstant", "LossGivenWrongNumbers"),
    "softmax-over-batch": _answer("loss mean", "ActivationBeforeLoss LossConstant", "LossGivenWrongNumbers"),
    "logarithm-of-zero": _answer("loss mean", "NonFinite LossDiverged", "NumericalRange"),
    "targets-ignored": _answer("loss mean", f"ZeroGradients NoGradient {_SLOW}"),
    "divergence-too-heavy": _answer("loss mean", "ConstantOutput LossConstant DeadUnits DeadLayer"),
    "temperature-too-high": _answer("loss mean", "LossConstant"),
    # Gradients
    "cut-by-detach": _answer("grad count", "NoGradient UnchangedParameter", "GradientCut"),
    "cleared-before-step": _answer(
        "update norm", "ClearedBeforeStep ZeroGradients NoGradient UnchangedParameter", "GradientsClearedEarly"
    ),
    "not-cleared": _answer("grad norm", "GradientsKept GradientsRepeat", "GradientsNotCleared"),
    "gradients-noisy": _answer("update norm", f"GradientsNoisy LossConstant {_UNSTABLE}"),
    "gradients-late": _answer("", _UNSTABLE),
    "gradients-turned": _answer("", _UNSTABLE),
    # The code around the model
    "clipping-misplaced": _answer("fact sightings", f"ClippingMisplaced {_UNSTABLE}", "LearningRateTooHigh ClippingMisplaced"),
    "tie-lost": _answer(
        "fact optimizers", "TieBroken PoorInitialization OddInitialization InitialLoss", "InitializationTooLarge"
    ),
    "part-in-list": _answer("fact sightings", "NotRegistered", "ParametersForgotten"),
    "average-lags": _answer("", "AverageLags"),
    "average-without-statistics": _answer("fact sightings", "AverageWithoutStatistics"),
    "resumed-without-state": _answer("fact sightings", "StateNotRestored"),
    "gradients-of-another-loss": _answer("fact sightings", "GradientsOfAnotherLoss", "GradientsMixed"),
    "target-stands-still": _answer("fact sightings", "TargetNeverSynchronised"),
    "target-trained": _answer("update abs_max", "TeacherTrained"),
    "micro-batches-added-up": _answer("grad norm", _UNSTABLE, "LearningRateTooHigh"),
    # Membership and modes
    "frozen-part": _answer("", "NoGradient UnchangedParameter"),
    "forgotten-part": _answer("fact optimizers", "NotInOptimizer", "ParametersForgotten"),
    "norms-in-evaluation": _answer("fact evaluating", "NormStatistics EvaluationMode", "EvaluationMode"),
    "norm-statistics-slow": _answer("", "NormStatisticsSlow"),
    # Weights
    "weights-too-large": _answer(
        "param rms", "PoorInitialization OddInitialization SaturatedActivation ExplodingGradient", "InitializationTooLarge"
    ),
    "weights-too-small": _answer(
        "param rms",
        "PoorInitialization OddInitialization VanishingGradient NoGradient DeadLayer ConstantOutput",
        "InitializationTooSmall",
    ),
    "activations-shut": _answer("output zero_fraction", "DeadLayer DeadUnits", "ActivationsDead"),
    "recurrence-amplifies": _answer(
        "param rms", f"PoorInitialization OddInitialization SaturatedActivation {_UNSTABLE}", "InitializationTooLarge"
    ),
    "tied-table-too-large": _answer(
        "param rms", f"InitialLoss PoorInitialization OddInitialization {_UNSTABLE}", "InitializationTooLarge"
    ),
    "weights-drawn-anew": _answer("param norm", "MovesBetweenSteps LossSpike LossDiverged", "WeightsWritten"),
    "weights-shrunk-by-code": _answer(
        "param norm",
        "MovesBetweenSteps WeightShrinkage ConstantOutput DeadLayer LossConstant VanishingGradient",
        "WeightsWritten",
    ),
    # Structure
    "layers-are-one": _answer("", "LayersAreOne"),
    "identity-left-out": _answer("output rms", "VanishingGradient PoorInitialization ConstantOutput", "InitializationTooSmall"),
    "activations-missing": _answer(""),
    "activations-saturate": _answer("output rms", "SaturatedActivation NoGradient", "ActivationsSaturated"),
    "sigmoids-too-deep": _answer(
        "grad norm", "VanishingGradient PoorInitialization ConstantOutput SaturatedActivation", "InitializationTooSmall"
    ),
    "outputs-cut-off": _answer("output min", "DeadLayer DeadUnits ConstantOutput", "ActivationsDead"),
    "future-not-masked": _answer(""),
    "attention-over-batch": _answer(""),
    "positions-too-large": _answer("output rms", "PoorInitialization OddInitialization", "InitializationTooLarge"),
    "positions-missing": _answer("output rms", "PoorInitialization DeadLayer", "InitializationTooSmall"),
    # Number formats
    "float16-without-scaler": _answer("grad zero_fraction", f"Underflow NonFinite NoGradient {_SLOW}", "NumericalRange"),
    "weights-in-bfloat16": _answer("update zero_fraction", f"Underflow {_SLOW}", "NumericalRange LearningRateTooLow"),
}
"""By the name of the mutator."""
