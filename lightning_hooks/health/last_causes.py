"""The causes that take their findings last: what activations, gradients, small steps and single batches explain."""

from __future__ import annotations

from typing import Final

from lightning_hooks.health.cause_effects import DULL, SMALLER_STEPS, STUCK, UNSTABLE
from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.conditions import (
    has_activation_of_zeros,
    has_activation_without_slope,
    is_at_chance,
    is_at_chance_by_large_steps,
)
from lightning_hooks.health.first_steps import has_lost_float16_weights
from lightning_hooks.health.slow_causes import STEPS_TOO_SMALL
from lightning_hooks.health.steps_before import has_stepped_too_far, step_sizes

AT_CHANCE: Final = CauseRule(
    name="LossAtChance",
    message=(
        "The loss is no better than chance since step {step}: outputs do not depend on inputs, or labels do not belong to them."
    ),
    required=("LossConstant",),
    supporting=(*STUCK[1:], "LostUpdates", *DULL),
    next_steps=(
        "Look at some inputs with their labels: a shuffle, a sort or a sampling of one without the other parts them.",
        "Try to overfit a single batch: if the loss of it does not fall, the model or the loss is at fault, not the data.",
    ),
    alternatives=(
        "A plateau at the start, which some deep networks need long to leave: then the loss falls, and the finding is over.",
        "A learning rate that is too low: then the loss falls with one that is ten times larger.",
        "Inputs that say hardly anything about the labels: then no other model does better than a constant output.",
        "A temperature that makes the scores of a contrastive loss alike: then the loss falls with one of 0.1.",
    ),
    while_standing=True,
    condition=is_at_chance,
)
"""A loss at chance that no other cause explains."""

LAST_CAUSES: Final[tuple[CauseRule, ...]] = (
    CauseRule(
        name="UnitCollapsed",
        message="One expert, head or unit carries the load of all: {where}, since step {step}.",
        required=("UnitCollapse",),
        supporting=("DeadUnits", "MassiveActivation", "LossConstant", "ConstantOutput"),
        next_steps=("Add a loss that balances the load, or noise to the router.",),
        alternatives=("A layer with a few units, one of which is a bias in disguise: look at `top_unit` over time.",),
    ),
    CauseRule(
        name="ActivationsSaturated",
        message="No gradient passes an activation all of whose inputs lie where its slope is 0: {where}, since step {step}.",
        required=("SaturatedActivation",),
        any_of=("NoGradient@output_grad", "NoGradient@grad"),
        supporting=(*STUCK, "ConstantOutput", "DeadUnits"),
        next_steps=("Put a norm before the activation.", "Scale the initial weights down."),
        alternatives=("A learning rate that is too high: then updates were large before the saturation began.",),
        condition=has_activation_without_slope,
    ),
    CauseRule(
        name="ActivationsSaturated",
        message="Most inputs of an activation lie where its slope is about zero: {where}, since step {step}.",
        required=("SaturatedActivation",),
        supporting=(*STUCK, "ConstantOutput", "DeadUnits", "NoGradient@output_grad"),
        next_steps=("Put a norm before the activation.", "Scale the initial weights down."),
        alternatives=("A learning rate that is too high: then updates were large before the saturation began.",),
    ),
    CauseRule(
        name="LearningRateTooHigh",
        message="Steps have changed most weights by a large share of them, and then units died: {where}, by step {step}.",
        any_of=("DeadLayer", "DeadUnits"),
        supporting=(*UNSTABLE, *STUCK, "NoGradient", "ConstantOutput", "ZeroInput"),
        next_steps=SMALLER_STEPS,
        alternatives=("Units that were dead from the start: then `zero_fraction` of their output is 1 at step 0 already.",),
        history=has_stepped_too_far,
    ),
    CauseRule(
        name="ActivationsDead",
        message="Units give zero for every sample, so no gradient passes them: {where}, since step {step}.",
        any_of=("DeadLayer", "DeadUnits"),
        supporting=(*STUCK, "NoGradient", "ConstantOutput", "ZeroInput"),
        next_steps=(
            "If the units are dead from the first step on, start biases at 0 or slightly above; else lower the learning rate.",
            "Use an activation with a slope everywhere (GELU, LeakyReLU).",
        ),
        alternatives=(
            "Dropout or a mask near 1: then the module before it is alive.",
            "One large step early on: then the units die together within a few steps.",
        ),
    ),
    CauseRule(
        name="InputOfZeros",
        message="What {where} multiplies is always 0, so that it gets no gradient, since step {step}.",
        required=("NoGradient@input",),
        supporting=(*STUCK, *DULL),
        next_steps=(
            "Look at the input of the module: the data behind a wrong key, a mask, a division of integers, a factor of 0.",
            "If it is the recurrent weight of an RNN, look whether sequences have length 1, as with a wrong `batch_first`.",
        ),
        alternatives=("A loss that reads only the first element of each sequence: then the state before it is 0.",),
        confidence="likely",
    ),
    CauseRule(
        name="ActivationsDead",
        message="No gradient passes an activation that gives zero for every sample: {where}, since step {step}.",
        required=("NoGradient@output_grad", "DeadUnits"),
        supporting=("ConstantOutput", "ZeroInput", *STUCK),
        next_steps=(
            "If the units are dead from the first step on, start biases at 0 or slightly above; else lower the learning rate.",
            "Use an activation with a slope everywhere (GELU, LeakyReLU).",
        ),
        alternatives=("A gate or mask of 0 elsewhere: then the gradient of the activation's output is 0 too.",),
        condition=has_activation_of_zeros,
    ),
    CauseRule(
        name="PathShut",
        message="The output of the module of {where} is multiplied by exactly 0 on its way to the loss, since step {step}.",
        required=("NoGradient@output_grad",),
        supporting=(*STUCK, *DULL),
        next_steps=(
            "Look behind the module for a gate, a mask or a scale of 0, and for a loss term with the weight 0.",
            "If a gate and the layer in front of it both start at 0, start one of them elsewhere: neither gets a gradient.",
            "Look for an activation behind it whose slope is 0 for every sample, such as a ReLU far below 0.",
        ),
        alternatives=(
            "A graph that is cut, where `zero_grad(set_to_none=False)` has left zeros: then search for `detach()`.",
            "A path that a later stage of the training opens: accept the finding.",
        ),
        confidence="likely",
    ),
    CauseRule(
        name="GradientCut",
        message="No gradient reaches {where}: something cuts the graph between it and the loss.",
        required=("NoGradient",),
        supporting=("UnchangedParameter", "UpdateTooSmall", "LossConstant", "VanishingGradient", "NotCalledAnyMore"),
        next_steps=(
            "Search between the last of these modules and the loss for `detach()`, `.data`, `.item()`, `torch.no_grad()` and "
            "argmax.",
        ),
        alternatives=(
            "An output that no loss uses: then nothing is wrong, and the parameter can be frozen.",
            "The parameter is frozen on purpose: set `requires_grad=False` and leave it out of the optimizer.",
        ),
        confidence="likely",
        same_rows=True,
    ),
    CauseRule(
        name="LearningRateTooLow",
        message="The learning rate is 0, so that nothing changes: {where}, since step {step}.",
        required=("LearningRateZero",),
        supporting=("LossConstant", "UnchangedParameter", "UpdateTooSmall", "LostUpdates"),
        next_steps=(
            "Look at what the schedule does at this step: the number of steps that it was given, and how often it is stepped.",
        ),
        alternatives=("Frozen on purpose: then `requires_grad_(False)` on the parameters of the group says so.",),
    ),
    STEPS_TOO_SMALL,
    CauseRule(
        name="LearningRateTooHigh",
        message="Steps have changed most weights by a large share of them, and the loss is not below chance since step {step}.",
        required=("LossConstant",),
        supporting=(*UNSTABLE, *DULL, *STUCK[1:], "LostUpdates", "WeightShrinkage"),
        next_steps=SMALLER_STEPS,
        alternatives=("Labels that do not belong to their inputs: then the loss stays at chance with smaller steps, too.",),
        detail=step_sizes,
        while_standing=True,
        condition=is_at_chance_by_large_steps,
        history=has_stepped_too_far,
    ),
    AT_CHANCE,
    CauseRule(
        name="NumericalRange",
        message="Parameters are float16, and an update by finite gradients made them infinite or NaN: {where}, step {step}.",
        required=("NonFinite@param",),
        supporting=(*STUCK, *DULL, "Underflow", "ScaleCollapse", "NoGradient", "LostUpdates"),
        excluding=("NonFinite@input", *UNSTABLE[:-1]),
        next_steps=(
            "Keep the weights in float32, and train with precision 16-mixed or bf16-mixed.",
            "Look at eps of the optimizer: numbers below 3e-8 are 0 in float16, so that 1e-8 guards against no division by 0.",
        ),
        alternatives=("A learning rate that is too high: then the same update makes weights of float32 very large.",),
        confidence="likely",
        history=has_lost_float16_weights,
    ),
    CauseRule(
        name="NumericalRange",
        message="An operation gave a number that is not finite: {where}, at step {step}.",
        required=("NonFinite",),
        excluding=("NonFinite@input", "NonFinite@param", *UNSTABLE[:-1]),
        next_steps=(
            "Search for a logarithm or root of 0, a division by 0, and the exponential of a large number.",
            "Look at the batch of this step: values that are not finite, or far from all others.",
        ),
        alternatives=(
            "A batch that is not finite: then the output of the first module is not finite either.",
            "A number format that is too narrow: then the same step in float32 is finite.",
        ),
    ),
    CauseRule(
        name="BadBatch",
        message="The data holds numbers that are not finite, at step {step} first: {where}.",
        required=("NonFinite@input",),
        supporting=(*UNSTABLE, *STUCK, "ScaleCollapse"),
        next_steps=(
            "Look at the batch of that step with `torch.isfinite`: missing values, a division by 0 in the preprocessing.",
            "If weights are not finite since, go on from a checkpoint before that step.",
        ),
        alternatives=("A first module that overflows in its number format: then the batch is finite, and inputs are large.",),
        confidence="likely",
    ),
    CauseRule(
        name="BadBatch",
        message="The data of single steps differs from all other data, at step {step} first: {where}.",
        any_of=("LossSpike", "GradientSpike+"),
        supporting=("NonFinite", "GradientSpike", "LossSpike"),
        next_steps=("Look at the batch of that step: labels, missing values, and the scale of its inputs.",),
        alternatives=(
            "A learning rate at the edge of stability: then spikes become more frequent, and no few rows hold the gradient.",
            "A very small last batch: then the spikes come once an epoch.",
        ),
    ),
)
"""The end of the table of causes."""
