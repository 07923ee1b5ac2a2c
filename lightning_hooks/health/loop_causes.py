"""The causes in the code around the model: its order, its settings, its loss, its targets. Facts that lookouts have seen."""

from __future__ import annotations

from typing import Final

from lightning_hooks.health.cause_effects import DULL, STUCK, UNSTABLE
from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.conditions import (
    has_frozen_embedding_alone,
    has_swapped_betas,
)
from lightning_hooks.health.rules.copies import CopyUpdated
from lightning_hooks.health.rules.loss_inputs import LabelsFitHead
from lightning_hooks.health.rules.resume import StateNotRestored, what_is_lost
from lightning_hooks.health.rules.targets import TargetsChange, TargetsMisplaced
from lightning_hooks.health.rules.ties import TieBroken
from lightning_hooks.health.schedule_causes import SCHEDULE_MISMATCH
from lightning_hooks.health.sighted import said

LOOP_CAUSES: Final[tuple[CauseRule, ...]] = (
    *SCHEDULE_MISMATCH,
    CauseRule(
        name="NumericalRange",
        message="The optimizer divides by 0, because its eps is 0 in the format of the weights: {where}, since step {step}.",
        required=("EpsilonVanishes",),
        supporting=(*UNSTABLE, *STUCK, *DULL, "LostUpdates", "Underflow", "NoGradient", "ScaleCollapse"),
        next_steps=(
            "Keep weights in float32 and compute in float16 (`16-mixed`, autocast), or train in bfloat16.",
            "If weights must be float16, give the optimizer eps=1e-4.",
        ),
        confidence="certain",
    ),
    CauseRule(
        name="BetasSwapped",
        message="The betas of the optimizer are the other way round: the second one belongs to the squared gradients.",
        required=("BetasSwapped",),
        supporting=(*UNSTABLE, *STUCK, *DULL, "LostUpdates"),
        next_steps=("Give betas in their order: that of the gradients first, as (0.9, 0.999).",),
        alternatives=("A learning rate that is too high: then the training also breaks with the usual betas.",),
        detail=said("betas-swapped"),
        condition=has_swapped_betas,
        confidence="likely",
    ),
    CauseRule(
        name="TargetsMisplaced",
        message="The targets are not the tokens that follow the given ones.",
        required=("TargetsMisplaced",),
        supporting=("LossConstant",),
        next_steps=TargetsMisplaced.next_steps,
        alternatives=("A model that predicts several tokens ahead on purpose: accept the finding.",),
        confidence="likely",
        detail=said("targets-misplaced"),
    ),
    CauseRule(
        name="TargetsChange",
        message="Labels do not belong to their inputs: the same samples have other targets in another epoch.",
        required=("TargetsChange",),
        supporting=("LossConstant",),
        next_steps=TargetsChange.next_steps,
        alternatives=("Labels that are made anew in each epoch on purpose: accept the finding.",),
        confidence="likely",
        detail=said("targets-change"),
    ),
    CauseRule(
        name="OptimizerWritesCopy",
        message="The optimizer writes into a copy of what is not contiguous in memory: {where}, which never moves.",
        required=("CopyUpdated",),
        supporting=("UnchangedParameter", "LostUpdates", "UpdateTooSmall"),
        next_steps=CopyUpdated.next_steps,
        confidence="certain",
        same_rows=True,
    ),
    CauseRule(
        name="ResumedWithoutState",
        message="The training does not go on where it was.",
        required=("StateNotRestored",),
        any_of=UNSTABLE,
        next_steps=StateNotRestored.next_steps,
        alternatives=("A new stage of the training on purpose: accept the finding.",),
        confidence="likely",
        detail=what_is_lost,
    ),
    CauseRule(
        name="TargetsIgnored",
        message="No target of the loss counts, so that there is nothing to learn from.",
        required=("TargetsIgnored",),
        supporting=(*STUCK, *DULL, "ZeroGradients", "NoGradient", "NonFinite", "LostUpdates"),
        next_steps=(
            "Print the targets of one batch: what is to be learned must not be `ignore_index` (-100 by default).",
            "If a template or a mask decides which tokens are targets, look whether it is found in the tokens of the batch.",
        ),
        confidence="certain",
    ),
    CauseRule(
        name="TieLost",
        message="Two parameters that are to be one are trained as two: {where}.",
        required=("TieBroken",),
        supporting=(*DULL, *STUCK, "InitialLoss", "PoorInitialization", "OddInitialization"),
        next_steps=TieBroken.next_steps[:1],
        alternatives=("A head that begins as a copy of the embedding on purpose: accept the finding.",),
        confidence="likely",
    ),
    CauseRule(
        name="ParametersForgotten",
        message="The model does not register modules of a plain list, so that no optimizer trains them: {where}.",
        required=("NotRegistered",),
        supporting=(*STUCK, *DULL),
        next_steps=("Put the modules into an `nn.ModuleList` or `nn.ModuleDict` before the optimizer is created.",),
        alternatives=("Kept aside on purpose: then `requires_grad=False` says so, and the finding goes.",),
        confidence="likely",
    ),
    CauseRule(
        name="VectorsFrozen",
        message="The vectors of an embedding are frozen, and the loss does not fall: {where}.",
        required=("FrozenHeld",),
        supporting=(*STUCK, *DULL),
        next_steps=("Let the optimizer train them: `nn.Embedding.from_pretrained(vectors, freeze=False)`.",),
        alternatives=("Labels that do not belong to their inputs: then the loss stands still with trained vectors too.",),
        condition=has_frozen_embedding_alone,
    ),
    CauseRule(
        name="LossComparesAll",
        message="The loss compares each sample with all others, because the shapes of its two sides do not fit.",
        required=("LabelsFitHead",),
        supporting=("LossConstant", "ConstantOutput", "VanishingGradient", "UpdateTooSmall"),
        next_steps=LabelsFitHead.next_steps[:1],
        confidence="certain",
    ),
    CauseRule(
        name="LossGivenWrongNumbers",
        message="The loss is given other numbers than it is made for.",
        required=("ActivationBeforeLoss",),
        supporting=("LossConstant", "ConstantOutput", "VanishingGradient", "UpdateTooSmall"),
        next_steps=(
            "Give `cross_entropy` and `binary_cross_entropy_with_logits` the output of the last layer itself.",
            "Put `log_softmax` in front of `nll_loss` and `kl_div`.",
        ),
        confidence="certain",
    ),
    CauseRule(
        name="GradientsNotCleared",
        message="Gradients that an optimizer has used are still there when the next ones are added to them, since step {step}.",
        required=("GradientsKept",),
        supporting=("GradientsRepeat", *UNSTABLE, *DULL),
        next_steps=("Call `zero_grad()` of each optimizer before the backward pass of its loss.",),
        confidence="certain",
    ),
    CauseRule(
        name="GradientsMixed",
        message="One optimizer steps with the gradients of another one's loss, since step {step}: {where}.",
        required=("GradientsOfAnotherLoss",),
        supporting=(*UNSTABLE, *STUCK, *DULL),
        next_steps=(
            "Clear the gradients of each optimizer right before the backward pass of its own loss, not after its own step.",
            "Or keep the other loss out of these parameters: `requires_grad_(False)` during its backward pass.",
        ),
        alternatives=("Two losses that are added up on purpose, each with a backward pass of its own: accept the finding.",),
        confidence="likely",
    ),
    CauseRule(
        name="GradientsClearedEarly",
        message="Gradients are cleared by `zero_grad()` between the backward pass and the step, so that the step uses none.",
        required=("ClearedBeforeStep",),
        supporting=(*STUCK, *DULL, "NoGradient", "LostUpdates"),
        next_steps=("Call `zero_grad()` before the backward pass or after the step, not between them.",),
        alternatives=("Steps that are skipped on purpose, for a batch that cannot be used: accept the finding.",),
        confidence="certain",
    ),
    CauseRule(
        name="ClippingMisplaced",
        message="Gradients are clipped where that limits no step, since step {step}, and steps are too large.",
        required=("ClippingMisplaced",),
        any_of=UNSTABLE,
        supporting=DULL,
        next_steps=("Clip the gradients after the last backward pass of a step and before the step.",),
        alternatives=("A learning rate that is too high for clipped gradients too: then the loss jumps after the change too.",),
        confidence="likely",
    ),
    CauseRule(
        name="AccumulationNotDivided",
        message="Gradients of several batches are added up and not divided by their number, and training suffers.",
        required=("AccumulationNotDivided",),
        supporting=(*UNSTABLE, *STUCK, *DULL, "NoGradient"),
        next_steps=(
            "Divide each loss by the number of batches that are accumulated, before its backward pass.",
            "Or divide the learning rate by it.",
        ),
        alternatives=("A rate that was chosen for the sum: then the loss does with the mean what it does now.",),
    ),
)
"""An earlier one takes its findings first."""
