"""Rules on the order of the loop: what is cleared, clipped and stepped, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.health.rule import HealthRule, Kind


@dataclass(frozen=True, kw_only=True)
class GradientsKept(HealthRule):
    """Gradients that an optimizer has used are still there when the next ones are added to them.

    It is looked at in the first twelve steps, by the writes to the gradients, so that no number is read. Gradients that are
    scaled down in place of being cleared are written to, and are not told.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("gradients-kept",)
    next_steps: ClassVar[tuple[str, ...]] = ("Call `zero_grad()` of each optimizer before the backward pass of its loss.",)
    source: ClassVar[str] = "a definition; at three steps, because a loop may begin in the middle of an accumulation"
    consequence: ClassVar[str] = (
        "Each step is taken along the sum of all gradients so far. Steps grow, point into old directions, and the training "
        "often diverges."
    )
    false_alarm: ClassVar[str] = (
        "A loop that keeps gradients on purpose, as a momentum of its own without an optimizer's buffer, looks the same. "
        "Accept the finding there."
    )


@dataclass(frozen=True, kw_only=True)
class ClearedBeforeStep(HealthRule):
    """Gradients are cleared by `zero_grad()` after the backward pass and before the step, so that the step changes nothing.

    It is looked at in the first twelve steps. Gradients that are set to other tensors afterwards, as in surgery on those of
    several losses, are not told.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("cleared-before-step",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Call `zero_grad()` before the backward pass or after the step, not between them.",
    )
    source: ClassVar[str] = "a definition; at three steps, because a loop may skip single steps so"
    consequence: ClassVar[str] = (
        "The optimizer steps without any gradient, so that nothing is learned although backward passes cost time."
    )
    false_alarm: ClassVar[str] = (
        "A loop may drop the gradients of batches that it cannot use. Only three steps with cleared gradients within the first "
        "twelve are told."
    )


@dataclass(frozen=True, kw_only=True)
class GradientsOfAnotherLoss(HealthRule):
    """An optimizer steps with gradients that the loss of another optimizer has left in its parameters.

    So it is where the loss of a generator passes through a discriminator, which does not clear what that leaves. Losses that
    are added up on purpose are not told: an accumulation, heads on a common body, an optimizer that steps less often.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("gradients-of-another-loss",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Clear the gradients of each optimizer right before the backward pass of its own loss.",
        "Or keep the other loss out of these parameters: `requires_grad_(False)` during its backward pass.",
    )
    source: ClassVar[str] = "a definition; at three steps, because a loop may begin in the middle of an accumulation"
    consequence: ClassVar[str] = (
        "The optimizer mixes the gradient of its own loss with one that may point the other way, as that of a generator does "
        "for a discriminator."
    )
    false_alarm: ClassVar[str] = (
        "Two losses with a backward pass each may be added up on purpose in the same parameters. Accept the finding if both "
        "are meant."
    )


@dataclass(frozen=True, kw_only=True)
class ClippingMisplaced(HealthRule):
    """A function that clips gradients is called where it limits no step: before the backward pass or after the step.

    It is looked at in the first twelve steps, for `clip_grad_norm_` and `clip_grad_value_` of torch. A call with a limit of
    100,000 or more, which only measures, is not told, nor a second call beside one at the right place.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("clipping-misplaced",)
    next_steps: ClassVar[tuple[str, ...]] = ("Clip the gradients after the last backward pass of a step and before the step.",)
    source: ClassVar[str] = "a definition; at three steps, because a loop may begin in the middle of a step"
    consequence: ClassVar[str] = "Gradients are not limited at all, so that a single bad batch can still ruin the weights."
    false_alarm: ClassVar[str] = (
        "A call that only measures the norm is not told if its limit is 100,000 or more. Use `math.inf` as the limit in such a "
        "call."
    )


@dataclass(frozen=True, kw_only=True)
class AccumulationNotDivided(HealthRule):
    """An optimizer steps with the sum of the gradients of several batches, whose losses are means.

    Sums are also added up on purpose, with a rate that was chosen for them, so that this is a note unless the loss shows harm.
    It is looked at in the first twelve steps of `SGD`: optimizers that divide gradients by their size, as Adam does, take the
    same step with a sum. A loss that is divided or multiplied is not told.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("accumulation-not-divided",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Divide each loss by the number of batches that are accumulated, before its backward pass.",
        "Or divide the learning rate by it.",
    )
    source: ClassVar[str] = "a definition; at three steps"
    consequence: ClassVar[str] = (
        "The step of SGD is as many times larger as there are batches, which acts like a learning rate that is multiplied by "
        "their number."
    )
    false_alarm: ClassVar[str] = (
        "A learning rate that was tuned for the sum is right as it is. The finding is a note until the loss of the run shows "
        "harm."
    )


RULES: Final[tuple[HealthRule, ...]] = (
    *(GradientsKept(), ClearedBeforeStep(), GradientsOfAnotherLoss(), ClippingMisplaced(), AccumulationNotDivided()),
)
"""The rules on the order of the loop, with their defaults."""
