"""Whether a training has learned, as its loss shows."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from lightning_hooks.health.cross_entropy import CrossEntropy, cross_entropy_of
from lightning_hooks.health.early_losses import EarlyLosses
from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.usage import has_several_optimizers
from lightning_hooks.health.window import Array
from lightning_hooks.health.witness import error_of, learned, noise_of

LEAST_STEPS: Final = 60
"""The number of steps of a training from which on its loss can show that it has learned."""
_LATE: Final = 8  # the least number of losses in the last tenth
_SHARE: Final = 0.005  # a fall by less is none, however quiet the loss is


def late_losses(evidence: Evidence) -> Array:
    """The losses of the last tenth of the steps of a run, float64 [steps]; at least the last eight behind step 40.

    Of a long run, only the losses in the window are left.
    """
    loss = evidence.loss()
    if loss is None or not loss.values.shape[1]:
        return np.empty(0)
    is_known = ~np.isnan(loss.values[:, 0]) & (loss.steps > evidence.first_step + EarlyLosses.LAST)
    values, steps = loss.values[is_known, 0], loss.steps[is_known]
    count = int((steps > evidence.step - (evidence.step - evidence.first_step + 1) / 10).sum())
    late: Array = values[-max(count, _LATE) :]
    return late


def has_learned(evidence: Evidence) -> bool | None:
    """Whether the loss has fallen since the steps 20 to 40, by three times its noise.

    In the first twenty steps the bias of a head learns how frequent each class is, which is no learning.

    Returns:
        None if the run has fewer than 60 steps, or too few of them have a loss.
    """
    if evidence.step - evidence.first_step + 1 < LEAST_STEPS:
        return None
    entropy, late = cross_entropy_of(evidence), late_losses(evidence)
    if entropy is not None and is_at_chance(late, entropy):
        return False
    return learned(evidence.early_losses(), late)


def is_at_chance(losses: Array, entropy: CrossEntropy) -> bool:
    """Whether the median of losses is not below the cross entropy of equal probabilities by three times its noise.

    Args:
        losses: float64 [steps]. The noise of fewer than two is not known, so that these are not at chance.
        entropy: of the loss.

    Example:
        >>> loss = np.random.default_rng(0).normal(2.3, 0.05, 16)
        >>> is_at_chance(loss, CrossEntropy(10, False)), is_at_chance(loss - 0.1, CrossEntropy(10, False))
        (True, False)
    """
    return len(losses) >= 2 and bool(np.median(losses) > entropy.chance - doubt_of(losses, entropy))


def doubt_of(losses: Array, entropy: CrossEntropy) -> float:
    """By how much a median must differ from the cross entropy of equal probabilities, as it differs by less by chance.

    Args:
        losses: at least two, float64 [steps].
        entropy: of the loss.
    """
    return max(3 * error_of(noise_of(losses), len(losses)), _SHARE * entropy.chance)


class LossCourse(NamedTuple):
    """What the loss of a run says about it.

    Args:
        first: the first loss; NaN if none is known.
        last: the median of the last losses, likewise.
        has_learned: whether the loss shows that the model has learned; None if it cannot show it.
        chance: the loss of a model that knows nothing; NaN if it is not known.

    Example:
        >>> LossCourse(2.3147, 2.301, False, 2.3026).text, LossCourse().text
        ('the loss went from 2.315 to 2.301 (chance is 2.303)', '')
    """

    first: float = np.nan
    last: float = np.nan
    has_learned: bool | None = None
    chance: float = np.nan

    @property
    def text(self) -> str:
        """The course in words; empty if no loss is known."""
        if np.isnan(self.first) or np.isnan(self.last):
            return ""
        chance = "" if np.isnan(self.chance) else f" (chance is {self.chance:.4g})"
        return f"the loss went from {self.first:.4g} to {self.last:.4g}{chance}"


UNKNOWN: Final = LossCourse()
"""The course of a loss that nobody knows."""


def course_of(evidence: Evidence) -> LossCourse:
    """The course of the loss of a run."""
    loss, start = evidence.loss(), evidence.start(*LOSS)
    if loss is None or start is None or not loss.values.shape[1]:
        return UNKNOWN
    known = loss.values[~np.isnan(loss.values[:, 0]), 0]
    late = late_losses(evidence)
    late = late if len(late) else known[-_LATE:]
    last = float(np.median(late)) if len(late) else np.nan
    entropy = cross_entropy_of(evidence)
    chance = np.nan if entropy is None or entropy.is_negated else entropy.chance
    return LossCourse(float(start[0]), last, has_learned(evidence) if _is_measure(evidence) else None, chance)


def _is_measure(evidence: Evidence) -> bool:
    """Whether the loss measures how much a model has learned.

    The losses of several optimizers, as of a generator and its discriminator, balance. A loss of both signs is no distance
    from anything; that of a policy gradient is an estimate whose size says nothing about the policy.
    """
    early, late = evidence.early_losses(), late_losses(evidence)
    has_both_signs = any(len(each) and each.min() < 0 < each.max() for each in (early, late))
    return not has_both_signs and not has_several_optimizers(evidence.facts)
