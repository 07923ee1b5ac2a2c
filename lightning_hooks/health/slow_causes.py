"""The causes of steps that are too small: a learning rate, and a clipping that leaves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.steps_before import has_small_steps, slowness

CLIPPING_STOPS_LEARNING: Final = CauseRule(
    name="ClippingStopsLearning",
    message="Clipping cuts every gradient by so much that the model hardly learns.",
    required=("ClippingAlways",),
    any_of=("LossConstant", "UpdateTooSmall", "UnchangedParameter", "SlowLearning"),
    excluding=("UpdateTooLarge", "NoGradient"),
    while_standing=True,
    next_steps=("Raise gradient_clip_val to about the usual norm of the gradient (`watch/run/grad_norm`).",),
    alternatives=("A learning rate that is too low: then the loss does not fall without clipping either.",),
)
"""Clipping by so much that it stands in for a learning rate that is too low."""

STEPS_TOO_SMALL: Final = CauseRule(
    name="LearningRateTooLow",
    message="The steps are too small for the model to learn, since step {step}.",
    any_of=("UpdateTooSmall", "LostUpdates", "SlowLearning"),
    supporting=("LossConstant", "UnchangedParameter"),
    excluding=("VanishingGradient",),
    next_steps=("Raise the learning rate, ten times first.", "Look at what the schedule did before this step."),
    detail=slowness,
    alternatives=(
        "A gradient that vanishes: then the updates of early layers are far smaller than those of late ones.",
        "A loss that is scaled down or divided twice: then it is far smaller than usual from the first step on.",
        "Fine-tuning on purpose: then the loss falls.",
        "Weights in bfloat16 or float16: then the optimizer needs a copy of the weights in float32.",
        "Targets that are far larger than the outputs: then a larger rate alone makes the training unstable.",
    ),
)
"""Small steps that no schedule and no clipping explains."""

_SLOW: Final = ("UpdateTooSmall", "SlowLearning", "LostUpdates", "LossConstant")

TARGETS_OF_SMALL_STEPS: Final[tuple[CauseRule, ...]] = (
    replace(
        CLIPPING_STOPS_LEARNING,
        required=("ClippingAlways", "TargetsOutOfReach"),
        any_of=(),
        supporting=_SLOW,
        history=has_small_steps,
        alternatives=("Targets that are far larger than the outputs: then the gradient is as large as they are.",),
    ),
    replace(
        STEPS_TOO_SMALL,
        required=("TargetsOutOfReach",),
        any_of=(),
        supporting=_SLOW,
        history=has_small_steps,
        next_steps=(
            "Raise the learning rate, ten times first.",
            "If the training is unstable then, divide the targets by their standard deviation.",
        ),
    ),
)
"""Targets out of reach of steps that hardly change a weight: at such a pace no target is reached, whatever its scale is."""
