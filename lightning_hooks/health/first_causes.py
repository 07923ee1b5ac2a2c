"""The causes that take their findings first: facts, data and weight decay, which explain what follows from them."""

from __future__ import annotations

from typing import Final

from lightning_hooks.health.cause_effects import DULL, STUCK, UNSTABLE
from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.conditions import (
    has_dead_activation,
    has_float16_weights,
    has_float16_without_gradient,
    has_gradients_in_backward,
    has_input_of_zeros,
    has_module_that_gives_zeros,
    has_modules_in_evaluation,
    has_no_module_that_gives_zeros,
    has_shut_layer,
    has_weights_of_zeros,
    said_of_shut_layers,
)
from lightning_hooks.health.rules.data import BatchOfZeros
from lightning_hooks.health.sighted import said
from lightning_hooks.health.slow_causes import TARGETS_OF_SMALL_STEPS

FIRST_CAUSES: Final[tuple[CauseRule, ...]] = (
    CauseRule(
        name="ReplicasApart",
        message="The ranks no longer train the same model: {where} differs between them since step {step}.",
        required=("ReplicasDiffer",),
        supporting=("LossSpike", "LossDiverged", "GradientSpike"),
        next_steps=(
            "Give every rank the same initial weights, and change weights on all ranks alike.",
            "Search for branches on the rank between the backward pass and the step of the optimizer.",
        ),
        confidence="certain",
    ),
    CauseRule(
        name="ParametersForgotten",
        message="The optimizer and the model do not hold the same parameters: {where}.",
        any_of=("NotInOptimizer", "StrangerInOptimizer"),
        supporting=("UnchangedParameter", "UpdateTooSmall", "FrozenMoves", "LossConstant"),
        next_steps=(
            "Create the optimizer after the last change of the model, from `self.parameters()`.",
            "If the parameter is frozen on purpose, set `requires_grad=False`.",
        ),
        alternatives=("Frozen on purpose: then `requires_grad=False` says so, and the finding goes.",),
        confidence="certain",
        same_rows=True,
    ),
    CauseRule(
        name="EvaluationMode",
        message="Batch norms are trained in evaluation mode, so that they use their stored statistics: {where}.",
        required=("NormStatistics",),
        supporting=("LossConstant", "LossSpike", "LossDiverged", "ConstantOutput"),
        next_steps=("Call `model.train()` before the loop, and after each evaluation that your code makes.",),
        alternatives=("A frozen backbone whose statistics are kept on purpose: accept the finding.",),
        confidence="likely",
        condition=has_modules_in_evaluation,
    ),
    CauseRule(
        name="DropoutTooHigh",
        message="Dropout lets hardly anything through: {where}, since step {step}.",
        required=("DropoutTooHigh",),
        supporting=(*STUCK, *DULL, "LossSpike", "GradientSpike"),
        next_steps=("Begin with a share of 0.1 to 0.5; the argument of `Dropout` is the share to drop, not to keep.",),
        alternatives=("A representation of which few elements suffice: then the loss falls, and the finding can be accepted.",),
    ),
    CauseRule(
        name="GradientsNotCleared",
        message="Gradients of earlier steps are still in those of the later ones since step {step}: {where}.",
        required=("GradientsRepeat",),
        supporting=(*UNSTABLE, *DULL),
        next_steps=("Call `optimizer.zero_grad()` before each backward pass, or once in each accumulation.",),
        alternatives=(
            "Data that hardly changes from batch to batch: then the norm of the gradient does not grow from step to step.",
        ),
        confidence="likely",
    ),
    CauseRule(
        name="NumericalRange",
        message="The number format cannot hold what the training computes: {where}, since step {step}.",
        any_of=("ScaleCollapse", "Underflow"),
        supporting=("NonFinite", "LostUpdates", *STUCK, "NoGradient", "SlowLearning"),
        excluding=("UpdateTooLarge", "LossDiverged", "InputNotNormalised"),
        next_steps=(
            "Train in bfloat16, or keep the layer that is named in float32.",
            "With float16, use a loss scaler; with weights in bfloat16, keep a copy in float32 for the optimizer.",
        ),
        alternatives=(
            "A learning rate that is too high overflows too: then updates are large before the first overflow.",
            "An operation without a finite result (log of 0, 0/0): then float32 fails at the same step.",
        ),
    ),
    CauseRule(
        name="NumericalRange",
        message="Parameters are float16, in which gradients below 6e-8 become 0: {where}, since step {step}.",
        any_of=("NoGradient@grad", "NoGradient@output_grad", "ZeroGradients", "LostUpdates"),
        supporting=(*STUCK, *DULL, "SlowLearning"),
        excluding=("UpdateTooLarge", "LossDiverged"),
        next_steps=(
            "Keep the parameters in float32 and use a loss scaler (precision 16-mixed), or train in bfloat16.",
            "Do not divide the loss by a large number.",
        ),
        alternatives=("A graph that is cut: then the gradient is missing in float32 too.",),
        condition=has_float16_without_gradient,
    ),
    CauseRule(
        name="NumericalRange",
        message="Weights are float16, and steps are smaller than their last digit, so that they are lost: {where}.",
        required=("LostUpdates",),
        supporting=(*STUCK, *DULL, "SlowLearning", "TargetsOutOfReach"),
        excluding=(
            *("UpdateTooLarge", "LossDiverged", "LearningRateZero", "LearningRateFallen", "ScheduleEndsEarly"),
            "WarmUpOutlastsFit",
        ),
        next_steps=(
            "Keep the weights in float32, and train with precision 16-mixed or bf16-mixed.",
            "If the weights must be float16, raise the learning rate, or round at random.",
        ),
        alternatives=("A learning rate or a loss that is far too small: then nothing is learned in float32 either.",),
        condition=has_float16_weights,
    ),
    CauseRule(
        name="GradientsClearedEarly",
        message="Gradients are cleared between the backward pass and the step of the optimizer, since step {step}.",
        required=("ZeroGradients",),
        supporting=(*STUCK, *DULL, "NoGradient", "LostUpdates"),
        next_steps=("Call `optimizer.zero_grad()` before the backward pass or after the step, not between them.",),
        # No clearing of gradients makes a loss exactly 0.
        excluding=("ZeroGradients@loss",),
        alternatives=("A loop that updates parameters within the backward pass: then they change, and the loss falls.",),
        confidence="likely",
        condition=has_gradients_in_backward,
    ),
    CauseRule(
        name="ActivationsDead",
        message="An activation gives zero for every sample, so that {where} gets zeros only, at each step since the first one.",
        required=("ZeroInput",),
        supporting=("NoGradient", *DULL, *STUCK),
        next_steps=(
            "Start biases in front of the activation at 0 or slightly above.",
            "Use an activation with a slope everywhere (GELU, LeakyReLU).",
        ),
        alternatives=("A mask or a gate of 0 beside it: then the output of the activation is not all zeros.",),
        confidence="likely",
        condition=has_dead_activation,
    ),
    CauseRule(
        name="ActivationsDead",
        message="A layer begins with numbers below 0 only, of which a ReLU makes zeros, so that no gradient passes: {where}.",
        any_of=("NoGradient@input", "NoGradient@output_grad", "ZeroInput"),
        supporting=("NoGradient", *DULL, *STUCK),
        next_steps=(
            "Look at the bias of that layer: start biases at 0 or slightly above.",
            "Use an activation with a slope everywhere (GELU, LeakyReLU).",
        ),
        alternatives=("A factor or a mask of 0 behind it: then the outputs need not be below 0.",),
        confidence="likely",
        condition=has_shut_layer,
        detail=said_of_shut_layers,
    ),
    CauseRule(
        name="InputOfZeros",
        message="Every number that enters {where} is 0, at each step since the first one.",
        required=("ZeroInput",),
        supporting=("DeadLayer@input", "NoGradient", *DULL, *STUCK),
        excluding=("DeadLayer@output",),
        next_steps=(
            "Look at the input of the module: the data behind a wrong key, a mask, a division of integers, a factor of 0.",
        ),
        alternatives=("An input that is zero on purpose, as the initial state of a recurrent network: accept the finding.",),
        confidence="likely",
    ),
    CauseRule(
        name="BadBatch",
        message="Whole batches are one number in all elements that were looked at: {where}.",
        required=("BatchOfZeros",),
        condition=has_no_module_that_gives_zeros,
        supporting=("DeadLayer", "NoGradient", *DULL, "LossSpike", "GradientSpike", "LossConstant"),
        next_steps=BatchOfZeros.next_steps,
        alternatives=("Batches that are emptied on purpose, as for an unconditional model: accept the finding.",),
        confidence="certain",
        detail=said("batch-of-zeros"),
    ),
    CauseRule(
        name="BadBatch",
        message="The first module gets zeros only since step {step}: {where}.",
        required=("DeadLayer@input",),
        supporting=("NoGradient", *DULL, "LossSpike", "GradientSpike", "LossConstant"),
        next_steps=("Look at what the loader gives at that step: padding, a missing file, a mask, a division of integers.",),
        alternatives=("An input that is zero on purpose, as the initial state of a recurrent network: accept the finding.",),
        condition=has_input_of_zeros,
    ),
    CauseRule(
        name="NumericalRange",
        message="A module without weights gives zeros only, though its input is not zero: then {where}, since step {step}.",
        required=("DeadLayer@input",),
        supporting=("NoGradient", *DULL, "LossSpike", "GradientSpike", "LossConstant", "BatchOfZeros"),
        excluding=("UpdateTooLarge", "LossDiverged"),
        next_steps=(
            "Look at the numbers inside that module: a sum of squares above 65504 is infinite in float16, and divides to 0.",
            "Compute norms and softmax in float32.",
        ),
        alternatives=(
            "A mask or a factor of zeros: then the module gives zeros in float32 too.",
            "An input that is the same everywhere: a norm that subtracts the mean makes zeros of it.",
        ),
        condition=has_module_that_gives_zeros,
    ),
    CauseRule(
        name="InitializationTooSmall",
        message="Weights start at zero and stay there, so that neither signal nor gradient passes: {where}, since step {step}.",
        any_of=("NoGradient@grad", "NoGradient@output_grad", "DeadUnits", "DeadLayer", "ConstantOutput"),
        supporting=(*STUCK, *DULL, "NoGradient", "PoorInitialization", "OddInitialization"),
        next_steps=("Start weights with the initialisation of their class, `reset_parameters()`; zeros are for biases.",),
        alternatives=("A branch that starts at zero on purpose: then its own weight gets a gradient, and grows.",),
        condition=has_weights_of_zeros,
    ),
    CauseRule(
        name="DataNotNormalised",
        message="The numbers that enter the model are far from mean 0 and standard deviation 1: {where}.",
        any_of=("InputNotNormalised", "InputColumnScale"),
        supporting=(*UNSTABLE, *DULL, *STUCK, "PoorInitialization", "InitialLoss", "InputNotNormalised", "InputColumnScale"),
        next_steps=("Subtract the mean of each feature of the training data and divide by its standard deviation.",),
        alternatives=("Categories that are given as numbers: use an embedding.",),
        detail=said("column-scale"),
    ),
    *TARGETS_OF_SMALL_STEPS,
    CauseRule(
        name="DataNotNormalised",
        message="The targets are far larger than what the model gives: {where}.",
        required=("TargetsOutOfReach",),
        supporting=(*UNSTABLE, *DULL, *STUCK),
        next_steps=("Divide the targets by their standard deviation, and multiply predictions with it.",),
        alternatives=("A learning rate that is too low: then targets of a usual scale are not reached either.",),
    ),
    CauseRule(
        name="WeightDecayDominates",
        message="Weight decay shrinks the weights faster than the gradients change them: {where}.",
        required=("WeightDecayTooLarge",),
        supporting=(*STUCK, *DULL, "UpdateTooLarge", "WeightShrinkage"),
        excluding=("LossDiverged",),
        next_steps=(
            "Lower weight_decay: 0.1 and less is usual; `AdamW` and `SGD` take lr · weight_decay of the weights in each step.",
            "Where weight_decay is usual, the gradient is small: look for a loss that is scaled down, a temperature, or an "
            "output that hardly depends on the inputs.",
        ),
        alternatives=("A learning rate that is too high: then weight_decay is 0.1 or less.",),
    ),
)
"""The beginning of the table of causes."""
