"""What the entries of a cause have in common, and why each cause harms, for `lightning-hooks explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONSEQUENCES: Final[Mapping[str, str]] = {
    "ScheduleMismatch": "Most steps are taken at a rate that the schedule did not mean for them.",
    "NumericalRange": "Numbers that the format cannot hold become 0 or infinite, so that weights stand still or are lost.",
    "BetasSwapped": (
        "The optimizer averages the gradients over more steps than their squares, so that its steps can become very large."
    ),
    "OptimizerWritesCopy": "The updates are lost with the copy, so that the parameters keep their first values.",
    "ResumedWithoutState": (
        "The first steps after the resume are taken without the moments or the rate that belong to the weights, which can undo "
        "what was learned."
    ),
    "TargetsIgnored": "There is no gradient, and every step of the training is lost time.",
    "TargetsMisplaced": "The model learns to predict another token than the one that is to come next.",
    "TargetsChange": "The model cannot learn labels that do not belong to the inputs, and becomes unsure of the others.",
    "TieLost": (
        "The two weights drift apart, the model has more parameters than planned, and a checkpoint may restore only one "
        "of them."
    ),
    "ParametersForgotten": (
        "A part of the model keeps its first values while the rest trains around it, and no error is raised."
    ),
    "VectorsFrozen": "The model cannot adapt the vectors, so that the other layers must do without what they lack.",
    "LossComparesAll": "The model learns the mean of the targets, because each output is compared with all of them.",
    "LossGivenWrongNumbers": "Gradients are far too small or wrong, so that the model learns slowly or something else.",
    "GradientsNotCleared": "Steps follow the sum of all earlier gradients, grow, and often let the training diverge.",
    "GradientsMixed": "An optimizer follows the gradient of a loss that it is not to lower, or is even to raise.",
    "GradientsClearedEarly": "Backward passes cost time, and the optimizer finds no gradient to use.",
    "ClippingMisplaced": "Gradients are not limited, so that a single bad batch can ruin the weights.",
    "AccumulationNotDivided": "Steps are as many times too large as there are batches in one step.",
    "ReplicasApart": "The averaged gradient fits none of the models, and a checkpoint holds only one of them.",
    "EvaluationMode": "The norms use stored statistics that do not follow the weights that are trained.",
    "DropoutTooHigh": "The layers behind the dropout hardly see the input, so that the loss falls slowly or not at all.",
    "ActivationsDead": "Neither a signal nor a gradient passes the dead units, so that the layers before them stop learning.",
    "InputOfZeros": "The layer gives its bias for every sample, and its weight gets no gradient.",
    "RecurrenceExplodes": (
        "The gradient grows with the length of the sequence until one step ruins the weights or numbers are infinite."
    ),
    "BadBatch": "One batch can undo what many steps have taught, or make weights NaN for good.",
    "InitializationTooSmall": (
        "The signal fades on its way, and so does the gradient on its way back, so that early layers hardly learn."
    ),
    "InitializationTooLarge": "The first steps only repair the scale, with gradients so large that they can ruin layers.",
    "DataNotNormalised": "A single learning rate does not fit all weights, so that the training is slow or unstable.",
    "WeightDecayDominates": "The model forgets faster than it learns.",
    "WeightsWritten": (
        "The optimizer works with a state that no longer fits the weights, and what it has learned is overwritten."
    ),
    "LearningRateTooLow": "The weights hardly move, so that the training ends long before the model has learned.",
    "LossAtChance": "The model gives answers that do not depend on the input, so that nothing is learned.",
    "ClippingStopsLearning": "Steps are a tiny share of what the learning rate promises, so that the model hardly learns.",
    "LearningRateTooHigh": (
        "Updates destroy what earlier steps have built. The loss rises, units die, or numbers stop being finite."
    ),
    "ActivationsSaturated": "Hardly any gradient passes the activation, so that the layers before it learn very slowly.",
    "UnitCollapsed": "The other units or experts are not trained, so that the model has the capacity of one of them.",
    "PathShut": "No gradient passes a factor of 0, so that the module and all that only it reads are not trained.",
    "GradientCut": "The parameters behind the cut keep their first values, and no error is raised.",
}
"""By the name of the cause."""
MEANINGS: Final[Mapping[str, str]] = {
    "ScheduleMismatch": "The schedule of the learning rate does not fit the number of times that it is advanced.",
    "ParametersForgotten": "The optimizer does not hold all parameters of the model, or holds others.",
    "NumericalRange": "The number format cannot hold what the training computes, so that numbers become 0, infinite or NaN.",
    "GradientsNotCleared": "Gradients of earlier steps are still there when the next ones are added to them.",
    "GradientsClearedEarly": "Gradients are cleared between the backward pass and the step of the optimizer.",
    "ActivationsDead": "Units or whole activations give 0 for every sample, so that no gradient passes them.",
    "InputOfZeros": "A layer multiplies only zeros, because its input or its state is 0.",
    "BadBatch": "The data of single steps differ from all other data, or hold numbers that are not finite.",
    "InitializationTooSmall": "Weights start at zero or too small, so that the signal fades on its way.",
    "InitializationTooLarge": "Weights start too large, so that signals or first gradients are out of proportion.",
    "DataNotNormalised": "The inputs or the targets have a scale that the model cannot fit from its start.",
    "WeightsWritten": "Other code than the optimizer writes into the weights.",
    "LearningRateTooLow": "The steps are too small for the model to learn, by their rate or by its schedule.",
    "LearningRateTooHigh": "Updates are too large, because the learning rate is too high for this model or at this step.",
    "ActivationsSaturated": "Activations lie where their slope is about zero, so that hardly any gradient passes them.",
}
"""What the entries of a cause have in common, by its name, for causes that have several entries in the table."""
