"""The table of causes. The order counts: an earlier cause takes its findings first, and facts come before patterns."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lightning_hooks.health.cause_effects import DULL, STUCK, UNSTABLE
from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.conditions import (
    began_saturated,
    has_activation_of_zeros,
    has_activation_without_slope,
    is_at_chance,
    is_at_chance_in_ordinary_steps,
)
from lightning_hooks.health.first_causes import FIRST_CAUSES
from lightning_hooks.health.steps_before import (
    divergence,
    has_diverged,
    has_jumped,
    has_lowered_rate,
    has_moved_at_most_steps,
    has_raised_rate,
    has_stepped_too_far,
    slowness,
)

_AT_CHANCE: Final = CauseRule(
    name="LossAtChance",
    message="The loss is at chance since step {step}: outputs do not depend on inputs, or labels do not belong to them.",
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
    ),
    while_standing=True,
    condition=is_at_chance,
)
"""A loss at chance that no other cause explains."""


CAUSES: Final[tuple[CauseRule, ...]] = (
    *FIRST_CAUSES,
    CauseRule(
        name="WeightsWritten",
        message="Other code than the optimizer changes most weights between any two steps: {where}, since step {step}.",
        required=("MovesBetweenSteps",),
        supporting=(*UNSTABLE, *DULL, *STUCK, "NoGradient", "ScaleCollapse"),
        next_steps=("Search for code that writes into weights: `mul_`, `copy_`, `.data`, a decay or an average of your own.",),
        alternatives=("Weights that are kept at a norm on purpose: accept the finding, and look at the rest without it.",),
        confidence="likely",
        history=has_moved_at_most_steps,
    ),
    CauseRule(
        name="WeightsWritten",
        message="Other code than the optimizer shrinks weights between the steps: {where}, since step {step}.",
        required=("MovesBetweenSteps", "WeightShrinkage"),
        supporting=(*UNSTABLE, *DULL, *STUCK, "NoGradient", "ScaleCollapse"),
        next_steps=("Search for code that writes into weights: `mul_`, `copy_`, `.data`, a decay or an average of your own.",),
        alternatives=("Weights that are kept at a norm on purpose: accept the finding, and look at the rest without it.",),
    ),
    CauseRule(
        name="LearningRateTooLow",
        message="The learning rate fell to less than a hundredth early in the run, and the loss has hardly fallen: {where}.",
        required=("LossConstant",),
        supporting=(*STUCK[1:], "LearningRateZero", "LostUpdates", *DULL),
        next_steps=(
            "Look at what the schedule does: the number of steps that it was given, and how often it is stepped.",
            "Let the rate fall over the whole fit.",
        ),
        alternatives=("Labels that do not belong to their inputs: then the loss does not fall while the rate is high either.",),
        while_standing=True,
        condition=has_lowered_rate,
    ),
    # Below this line are symptoms that many a training at chance has besides. None of them explains it while weights move.
    replace(
        _AT_CHANCE,
        supporting=tuple(each for each in _AT_CHANCE.supporting if each not in ("DeadLayer", "ConstantOutput")),
        excluding=(
            *("PoorInitialization", "OddInitialization", "DeadLayer", "ConstantOutput", "NoGradient"),
            *("UpdateTooLarge", "WeightGrowth", "LossDiverged", "ExplodingGradient", "NonFinite"),
        ),
        condition=is_at_chance_in_ordinary_steps,
    ),
    CauseRule(
        name="ClippingStopsLearning",
        message="Clipping cuts every gradient by so much that the model hardly learns.",
        required=("ClippingAlways",),
        any_of=("LossConstant", "UpdateTooSmall", "UnchangedParameter"),
        excluding=("UpdateTooLarge", "NoGradient"),
        while_standing=True,
        next_steps=("Raise gradient_clip_val to about the usual norm of the gradient (`watch/run/grad_norm`).",),
        alternatives=("A learning rate that is too low: then the loss does not fall without clipping either.",),
    ),
    CauseRule(
        name="InitializationTooLarge",
        message="Weights start too large: {where} differs from its neighbours from the first steps on.",
        any_of=("PoorInitialization>", "OddInitialization>"),
        supporting=(*UNSTABLE, *DULL, *STUCK, "InitialLoss"),
        next_steps=(
            "Use the initialisation that belongs to the activation: `kaiming_uniform_` for ReLU, `xavier_uniform_` for tanh.",
        ),
        alternatives=(
            "Inputs that are not normalised: then the first layer's input is far from standard deviation 1.",
            "A residual sum without a norm: then the scale grows evenly from block to block.",
        ),
    ),
    CauseRule(
        name="InitializationTooSmall",
        message="Weights start too small: the signal fades at {where} from the first steps on.",
        any_of=("PoorInitialization<", "OddInitialization<"),
        supporting=(*STUCK, *DULL, "UpdateTooLarge"),
        next_steps=(
            "Use the initialisation that belongs to the activation: `kaiming_uniform_` for ReLU, `xavier_uniform_` for tanh.",
        ),
        alternatives=("A layer that starts at zero by design (LoRA, zero-gamma): its update soon makes it grow; accept it.",),
    ),
    CauseRule(
        name="WeightsWritten",
        message="Other code than the optimizer changed weights between two steps, and then training broke: {where}, {step}.",
        required=("MovesBetweenSteps",),
        supporting=(*UNSTABLE, *DULL, *STUCK, "NoGradient", "ScaleCollapse"),
        next_steps=("Search for code that writes into weights: `copy_`, `mul_`, `.data`, `init`, `load_state_dict`.",),
        alternatives=(
            "A learning rate that is too high, beside weights that are clipped on purpose: then they are clipped at each step.",
        ),
        history=has_jumped,
    ),
    CauseRule(
        name="LearningRateTooHigh",
        message="The learning rate rose to a multiple within a step, and then the training broke: {where}, since step {step}.",
        any_of=(*UNSTABLE, "DeadLayer", "DeadUnits"),
        supporting=(*DULL, *STUCK, "ScaleCollapse", "NoGradient", "LostUpdates", "WeightDecayTooLarge"),
        next_steps=("Look at what the schedule does before this step.", "Let the learning rate rise over some hundred steps."),
        alternatives=("A bad batch: then the training also breaks with a schedule that does not rise.",),
        history=has_raised_rate,
    ),
    CauseRule(
        name="ActivationsSaturated",
        message="Activations lie where their slope is about zero since step 0, before any update: {where}.",
        required=("SaturatedActivation",),
        any_of=("UpdateTooLarge", "ExplodingGradient", "VanishingGradient", "UpdateTooSmall", "LossConstant"),
        supporting=(*DULL, *STUCK, "WeightGrowth", "LossSpike", "GradientSpike", "NoGradient@output_grad", "LostUpdates"),
        excluding=("NonFinite", "LossDiverged"),
        next_steps=(
            "Look at what enters them: the scale of the data, the initial weights, a factor in front of the activation.",
            "Put a norm before the activation.",
        ),
        alternatives=("A learning rate that is too high: then a smaller one lets the slopes rise within some steps.",),
        condition=began_saturated,
    ),
    CauseRule(
        name="LearningRateTooHigh",
        message="The training diverged until numbers were too large for their format: {where} first, at step {step}.",
        required=("NonFinite",),
        supporting=(*UNSTABLE, *DULL, *STUCK, "ScaleCollapse", "NoGradient", "LostUpdates"),
        next_steps=(
            "Divide the learning rate by 10 or more, or warm it up over some hundred steps.",
            "Clip the norm of the gradient.",
        ),
        alternatives=(
            "Recurrent weights that amplify: then gradients explode before updates are large; clipping alone cures it.",
            "An operation without a finite result (log of 0, 0/0): then the steps before are ordinary.",
        ),
        history=has_diverged,
        detail=divergence,
    ),
    CauseRule(
        name="LearningRateTooHigh",
        message="The steps are too large for this model, since step {step}: {where} first.",
        any_of=("UpdateTooLarge", "WeightGrowth", "LossDiverged", "ExplodingGradient"),
        supporting=(*UNSTABLE, *DULL, *STUCK, "ScaleCollapse", "NoGradient", "LostUpdates", "WeightDecayTooLarge"),
        next_steps=("Divide the learning rate by 10, or warm it up over some hundred steps.", "Clip the norm of the gradient."),
        alternatives=(
            "A bad batch: then the first sign is one spike, and the steps before it are ordinary.",
            "A loss that is summed instead of averaged: then the gradient is large from step 0, by the size of the batch.",
            "Samples that come sorted: then the loss falls to almost 0, and jumps where the next kind begins.",
            "Recurrent weights that amplify: then gradients explode before updates are large; clipping alone cures it.",
        ),
        detail=divergence,
    ),
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
        next_steps=("Divide the learning rate by 10, or warm it up over some hundred steps.", "Clip the norm of the gradient."),
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
        next_steps=("Search behind the module for `detach()`, `.data`, `.item()`, `torch.no_grad()` and argmax.",),
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
    CauseRule(
        name="LearningRateTooLow",
        message="The steps are too small for the model to learn, since step {step}.",
        any_of=("UpdateTooSmall", "LostUpdates"),
        supporting=("LossConstant", "UnchangedParameter"),
        excluding=("VanishingGradient",),
        next_steps=("Raise the learning rate, ten times first.", "Look at what the schedule did before this step."),
        detail=slowness,
        alternatives=(
            "A gradient that vanishes: then the updates of early layers are far smaller than those of late ones.",
            "A loss that is scaled down or divided twice: then it is far smaller than usual from the first step on.",
            "Fine-tuning on purpose: then the loss falls.",
            "Weights in bfloat16 or float16: then the optimizer needs a copy of the weights in float32.",
        ),
    ),
    _AT_CHANCE,
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
            "A learning rate at the edge of stability: then spikes become more frequent, and come with any batch.",
            "A very small last batch: then the spikes come once an epoch.",
        ),
    ),
)
"""The causes that the package knows."""
