"""Whether a training has learned, as its loss shows."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from lightning_hooks.health.chance import LATE, chance_reached, late_losses
from lightning_hooks.health.cross_entropy import cross_entropy_of
from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.usage import losses_may_balance
from lightning_hooks.health.witness import learned

LEAST_STEPS: Final = 60
"""The number of steps of a training from which on its loss can show that it has learned."""


def has_learned(evidence: Evidence) -> bool | None:
    """Whether the loss has fallen since the steps 20 to 40, by three times its noise, and is not at chance.

    In the first twenty steps the bias of a head learns how frequent each class is, which is no learning.

    Returns:
        None if the run has fewer than 60 steps, or too few of them have a loss.
    """
    if evidence.step - evidence.first_step + 1 < LEAST_STEPS:
        return None
    if chance_reached(evidence) is not None:
        return False
    return learned(evidence.early_losses(), late_losses(evidence))


class LossCourse(NamedTuple):
    """What the loss of a run says about it.

    Args:
        first: the first loss; NaN if none is known.
        last: the median of the last losses, likewise.
        has_learned: whether the loss shows that the model has learned; None if it cannot show it.
        chance: the loss of a model that knows nothing; NaN if it is not known.
        is_at_chance: whether the last losses are there.
        is_finite: whether the very last one is finite; those that are not are left out of `last`.

    Example:
        >>> LossCourse(2.3147, 2.301, False, 2.3026).text, LossCourse().text
        ('the loss went from 2.315 to 2.301 (chance is 2.303)', '')
    """

    first: float = np.nan
    last: float = np.nan
    has_learned: bool | None = None
    chance: float = np.nan
    is_at_chance: bool = False
    is_finite: bool = True

    @property
    def text(self) -> str:
        """The course in words; empty if no loss is known."""
        if np.isnan(self.first) or np.isnan(self.last):
            return ""
        chance = "" if np.isnan(self.chance) else f" (chance is {self.chance:.4g})"
        end = "" if self.is_finite else ", and is not finite at the end"
        return f"the loss went from {self.first:.4g} to {self.last:.4g}{chance}{end}"


UNKNOWN: Final = LossCourse()
"""The course of a loss that nobody knows."""


def course_of(evidence: Evidence) -> LossCourse:
    """The course of the loss of a run."""
    loss, start = evidence.loss(), evidence.start(*LOSS)
    if loss is None or start is None or not loss.values.shape[1]:
        return UNKNOWN
    known = loss.values[~np.isnan(loss.values[:, 0]), 0]
    late = late_losses(evidence)
    late = late if len(late) else known[-LATE:]
    last = float(np.median(late)) if len(late) else np.nan
    reached = chance_reached(evidence)
    return LossCourse(
        float(start[0]),
        last,
        has_learned(evidence) if _is_measure(evidence) else None,
        _chance(evidence) if reached is None else reached.loss,
        reached is not None,
        _is_finite(evidence),
    )


def _is_finite(evidence: Evidence) -> bool:
    """Whether the loss of the last step is finite; True if that is not known."""
    key = "loss", "nonfinite"
    counts = evidence.track(*key) if key in evidence.needs else None
    return counts is None or not counts.values.size or not (counts.values[-1] > 0).any()


def _chance(evidence: Evidence) -> float:
    """The loss of equal probabilities; NaN if the loss is not known as a cross entropy."""
    entropy = cross_entropy_of(evidence)
    return np.nan if entropy is None or entropy.is_negated else entropy.chance


def _is_measure(evidence: Evidence) -> bool:
    """Whether the loss measures how much a model has learned.

    Several losses, as of a generator and its discriminator, balance. A loss of both signs is no distance
    from anything; that of a policy gradient is an estimate whose size says nothing about the policy.
    """
    early, late = evidence.early_losses(), late_losses(evidence)
    has_both_signs = any(len(each) and each.min() < 0 < each.max() for each in (early, late))
    return not has_both_signs and not losses_may_balance(evidence)
