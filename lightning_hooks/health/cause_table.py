"""The table of causes. The order counts: an earlier cause takes its findings first, and facts come before patterns."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lightning_hooks.health.cause_effects import DULL, SMALLER_STEPS, STUCK, UNSTABLE
from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.conditions import began_saturated, is_at_chance_in_ordinary_steps
from lightning_hooks.health.far_batches import has_far_batch, said_of_far_batch
from lightning_hooks.health.first_causes import FIRST_CAUSES
from lightning_hooks.health.first_steps import has_faded_from_start
from lightning_hooks.health.last_causes import AT_CHANCE, LAST_CAUSES
from lightning_hooks.health.loop_causes import LOOP_CAUSES
from lightning_hooks.health.schedule_causes import RATE_GONE
from lightning_hooks.health.slow_causes import CLIPPING_STOPS_LEARNING
from lightning_hooks.health.steps_before import (
    divergence,
    has_diverged,
    has_exploded_through_time,
    has_jumped,
    has_lowered_rate,
    has_moved_at_most_steps,
    has_raised_rate,
    through_time,
)
from lightning_hooks.health.tied_heads import has_large_head, has_large_tied_head, size_of_head, size_of_tied_head

_WEIGHTS_WRITTEN: Final = CauseRule(
    name="WeightsWritten",
    message="Other code than the optimizer changes most weights between any two steps: {where}, since step {step}.",
    required=("MovesBetweenSteps",),
    supporting=(*UNSTABLE, *DULL, *STUCK, "NoGradient", "ScaleCollapse"),
    next_steps=("Search for code that writes into weights: `mul_`, `copy_`, `.data`, a decay or an average of your own.",),
    alternatives=("Weights that are kept at a norm on purpose: accept the finding, and look at the rest without it.",),
    confidence="likely",
    history=has_moved_at_most_steps,
)
"""Code that writes into weights throughout the run."""

CAUSES: Final[tuple[CauseRule, ...]] = (
    *LOOP_CAUSES,
    *FIRST_CAUSES,
    _WEIGHTS_WRITTEN,
    replace(
        _WEIGHTS_WRITTEN,
        message="Other code than the optimizer shrinks weights between the steps: {where}, since step {step}.",
        required=("MovesBetweenSteps", "WeightShrinkage"),
        confidence="possible",
        history=None,
    ),
    *RATE_GONE,
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
    CauseRule(
        name="InitializationTooSmall",
        message="The gradient fades on its way back since the first step, so that the first layers do not learn: {where}.",
        required=("VanishingGradient",),
        supporting=(*STUCK, "ConstantOutput", "LostUpdates"),
        excluding=(
            *("SaturatedActivation", "DeadUnits", "DeadLayer", "NoGradient", "NonFinite", "UpdateTooLarge", "LossDiverged"),
            *("PoorInitialization", "OddInitialization", "MovesBetweenSteps", "ClippingMisplaced"),
        ),
        next_steps=(
            "Start weights large enough for the activation between them: `xavier_uniform_` with the gain of `calculate_gain`; "
            "a sigmoid, whose slope is 0.25 at most, needs weights four times as large.",
            "Use an activation that keeps the gradient, such as ReLU, a norm between the layers, or residual connections.",
        ),
        alternatives=("A loss that reads hardly anything of the model: then also the gradient of the head is small.",),
        condition=has_faded_from_start,
    ),
    # Below this line are symptoms that many a training at chance has besides. None of them explains it while weights move.
    replace(
        AT_CHANCE,
        supporting=tuple(each for each in AT_CHANCE.supporting if each not in ("DeadLayer", "ConstantOutput")),
        excluding=(
            *("PoorInitialization", "OddInitialization", "DeadLayer", "ConstantOutput", "NoGradient"),
            *("UpdateTooLarge", "WeightGrowth", "LossDiverged", "ExplodingGradient", "NonFinite"),
        ),
        condition=is_at_chance_in_ordinary_steps,
    ),
    CLIPPING_STOPS_LEARNING,
    CauseRule(
        name="InitializationTooLarge",
        message="The head has the weight of an embedding, which begins too large for a head: {where}.",
        any_of=("InitialLoss", "PoorInitialization>", "OddInitialization>"),
        supporting=(*UNSTABLE, *DULL, *STUCK, "InitialLoss"),
        next_steps=(
            "Start the embedding small, `nn.init.normal_(embedding.weight, std=0.02)`: that of `nn.Embedding` has a standard "
            "deviation of 1.",
            "Or divide the inputs of the head, or its outputs, by the square root of their width.",
        ),
        alternatives=("Inputs of the head that are not normalised: then a norm in front of the head cures it.",),
        confidence="likely",
        condition=has_large_tied_head,
        detail=size_of_tied_head,
    ),
    CauseRule(
        name="InitializationTooLarge",
        message="Weights start too large: {where} differs from its neighbours from the first steps on.",
        any_of=("PoorInitialization>", "OddInitialization>"),
        supporting=(*UNSTABLE, *DULL, *STUCK, "InitialLoss"),
        next_steps=(
            "Use the initialisation that belongs to the activation: `kaiming_uniform_` for ReLU, `xavier_uniform_` for tanh.",
            "Recurrent weights begin with `orthogonal_`, which keeps a state at its size.",
            "An embedding, and a head that shares its weight, begin with a standard deviation of about 0.02.",
        ),
        alternatives=(
            "Inputs that are not normalised: then the first layer's input is far from standard deviation 1.",
            "A residual sum without a norm: then the scale grows evenly from block to block.",
        ),
    ),
    CauseRule(
        name="InitializationTooLarge",
        message="The weight of the head begins so large that its outputs are far apart before anything is learned: {where}.",
        required=("InitialLoss",),
        supporting=(*UNSTABLE, *DULL, *STUCK),
        next_steps=(
            "Start the head small: `reset_parameters()` of its class, or a standard deviation of 0.02.",
            "If the head was to have the weight of an embedding, look whether both still are one parameter.",
        ),
        alternatives=("Logits that are multiplied by a factor: then the weight of the head is of ordinary size.",),
        confidence="likely",
        condition=has_large_head,
        detail=size_of_head,
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
        message="Other code changed weights between two steps, and then training broke: {where}, since step {step}.",
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
        name="BadBatch",
        message="The data of one step is far larger than all data before, and then training broke: {where}, since step {step}.",
        any_of=UNSTABLE,
        supporting=(*UNSTABLE, *DULL, *STUCK, "NoGradient", "LostUpdates"),
        next_steps=(
            "Look at the batch of that step: its scale, missing values, a sample of another source.",
            "Clip the norm of the gradient, so that one batch cannot undo the training; go on from a checkpoint before it.",
        ),
        alternatives=("Code that writes into the weights of the first layer: then they are larger at that step too.",),
        confidence="likely",
        history=has_far_batch,
        detail=said_of_far_batch,
    ),
    CauseRule(
        name="RecurrenceExplodes",
        message="A recurrent weight amplifies at each step of time, so that its gradient explodes: {where}, since step {step}.",
        any_of=("NonFinite", "LossDiverged", "UpdateTooLarge", "WeightGrowth", "ExplodingGradient"),
        supporting=(*UNSTABLE, *DULL, *STUCK, "ScaleCollapse", "NoGradient", "LostUpdates"),
        next_steps=(
            "Clip the norm of the gradient: `gradient_clip_val=1`.",
            "Use an LSTM or a GRU, or start the recurrent weight smaller: a ReLU lets states grow at each step of time.",
            "Cut long sequences into shorter ones.",
        ),
        alternatives=("A learning rate that is too high: then clipping the gradient cures nothing.",),
        confidence="likely",
        history=has_exploded_through_time,
        detail=through_time,
    ),
    CauseRule(
        name="LearningRateTooHigh",
        message="The training diverged until numbers were too large for their format, first seen in {where} at step {step}.",
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
        message="The steps are too large for this model, since step {step}, first seen in {where}.",
        any_of=("UpdateTooLarge", "WeightGrowth", "LossDiverged", "ExplodingGradient"),
        supporting=(*UNSTABLE, *DULL, *STUCK, "ScaleCollapse", "NoGradient", "LostUpdates", "WeightDecayTooLarge"),
        next_steps=SMALLER_STEPS,
        alternatives=(
            "A bad batch: then the first sign is one spike, and the steps before it are ordinary.",
            "A loss that is summed instead of averaged: then the gradient is large from step 0, by the size of the batch.",
            "Samples that come sorted: then the loss falls to almost 0, and jumps where the next kind begins.",
            "Recurrent weights that amplify: then gradients explode before updates are large; clipping alone cures it.",
        ),
        detail=divergence,
    ),
    replace(
        _WEIGHTS_WRITTEN,
        message="Other code changed weights between two steps: {where}, at step {step}, and training suffers.",
        required=("MovesBetweenSteps+",),
        supporting=("WeightShrinkage",),
        excluding=UNSTABLE,
        confidence="possible",
        history=None,
    ),
    *LAST_CAUSES,
)
"""The causes that the package knows."""
