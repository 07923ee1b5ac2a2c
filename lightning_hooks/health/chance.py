"""Chance: the loss of the best output that is the same for every sample, and whether a run is there."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lightning_hooks.health.cross_entropy import NEEDS, cross_entropy_of, has_equal_probabilities
from lightning_hooks.health.early_losses import EarlyLosses
from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.layers import last_layer
from lightning_hooks.health.roles import known_median, roles_of, starts
from lightning_hooks.health.usage import losses_may_balance
from lightning_hooks.health.window import Array
from lightning_hooks.health.witness import ZERO, error_of, noise_of

ONE_HALF: Final = "probabilities of one half"
"""The output whose loss of pairs is known, though the model need not have a last layer."""
LATE: Final = 8
"""The smallest number of losses whose median is the level of the last ones."""
_SHARE: Final = 0.005  # a fall by less is none, however quiet the loss is
_CONSTANT: Final = 0.02  # outputs whose differences between samples are worth a smaller share of the loss say nothing
_LARGE: Final = 1.0
"""The variance of logits between samples above which no quadratic law holds: their odds then differ by factors."""
_LEAST_ENTROPY: Final = (
    1e-3  # a cross entropy below this share of that of equal probabilities is of a model that knows its labels
)
_RECENT: Final = 64  # steps
_LEVEL: Final = 10  # losses whose median is the level at a step
_STANDS: Final = 150  # losses among which one that stands has not fallen
_SQUARED: Final = 0.01  # the relative difference up to which a loss is a mean squared error, because of rounding
_LOGISTIC: Final = 0.1  # the relative difference of a first loss and gradient from those of a probability of one half
_NEAR: Final = (0.9, 1.3)  # multiples of the loss of one half between which one that knows nothing begins
_EXACT: Final = 0.02  # the largest doubt, as a share of that loss, with which a loss that is there is there by no coincidence
_TIMES: Final = 5.0  # standard errors that even one of some hundred medians does not exceed by luck
_ALIKE: Final = 0.03
"""The share of the loss of equal scores that one of scores which are nearly alike has lost at most."""
_LEAST_SCORES: Final = 8
"""The smallest number of samples of a batch whose scores are compared."""
_SHARE_OF_FIT: Final = 0.9
"""Outputs that hardly differ count only after this share of the fit, because recurrent networks may start so slowly."""
_LONG: Final = 250
"""The number of steps after which they count if nobody knows how long the fit is."""


class Chance(NamedTuple):
    """The loss of a model whose outputs do not depend on its inputs.

    Args:
        loss: its value.
        of: which output has it.
        means: what follows for a run that is there.
        is_near: whether the loss is a little below it.
    """

    loss: float
    of: str
    means: str = "outputs do not depend on inputs, or labels do not belong to them"
    is_near: bool = False


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
    late: Array = values[-max(count, LATE) :]
    return late


def chance_reached(evidence: Evidence) -> Chance | None:
    """The chance at which the loss of a run is; None if it is not there, or if the run does not show where chance is.

    The loss of equal probabilities is known of a cross entropy. Of labels with other frequencies, of yes or no, and of a mean
    squared error, chance follows from the outputs: their differences between samples are worth hardly anything to the loss.
    Those of a slow start are so too, so that nine tenths of the fit must be over. A loss that compares the samples of a batch
    begins at that of equal scores; if it has left that by hardly anything by then, the scores are still alike. Several losses
    may balance, so they have no chance; and a loss that falls is not there.

    Args:
        evidence: of the run.
    """
    late = late_losses(evidence)
    if losses_may_balance(evidence):
        return None
    scores = _of_equal_scores(evidence, late)
    if scores is not None or not _stands(evidence):
        return scores
    equal = _of_equal_probabilities(evidence)
    if equal is not None and is_at_chance(late, equal.loss):
        return equal
    return _of_constant_output(evidence, late) or _of_one_half(evidence, late)


def is_at_chance(losses: Array, chance: float) -> bool:
    """Whether the median of losses is not below the loss at chance by three times its noise.

    Args:
        losses: float64 [steps]. The noise of fewer than two is not known, so that these are not at chance.
        chance: the loss of a model that knows nothing.

    Example:
        >>> loss = np.random.default_rng(0).normal(2.3, 0.05, 16)
        >>> is_at_chance(loss, 2.303), is_at_chance(loss - 0.1, 2.303)
        (True, False)
    """
    return len(losses) >= 2 and bool(np.median(losses) > chance - doubt_of(losses, chance))


def doubt_of(losses: Array, chance: float) -> float:
    """By how much a median must differ from the loss at chance, as it differs by less by chance.

    Args:
        losses: at least two, float64 [steps].
        chance: the loss of a model that knows nothing.
    """
    return max(3 * error_of(noise_of(losses), len(losses)), _SHARE * chance)


def chance_since(evidence: Evidence, chance: float) -> int:
    """The first step from which on a loss that is at chance has been there, or above, without a break.

    A loss that had left chance is back when it has lost half of what it had gained.

    Args:
        evidence: of the run.
        chance: the loss of a model that knows nothing.
    """
    loss = evidence.loss()
    if loss is None:
        return evidence.first_step
    finite = np.isfinite(loss.values[:, 0])
    values, steps = loss.values[finite, 0], loss.steps[finite]
    if len(values) < _LEVEL:
        return evidence.first_step
    levels = np.sort(sliding_window_view(values, _LEVEL), axis=1)[:, _LEVEL // 2]
    best = float(levels.min())
    if best < chance - max(_left(values, _LEVEL), _SHARE * chance):
        last = int(np.flatnonzero(levels <= (chance + best) / 2)[-1])
        return int(steps[min(last + _LEVEL // 2 + 1, len(steps) - 1)])
    early = evidence.early_losses()
    has_left = len(early) >= 2 and not is_at_chance(early, chance)
    return int(steps[0]) if has_left and steps[0] > evidence.first_step else evidence.first_step


def _stands(evidence: Evidence) -> bool:
    """Whether the loss has not fallen of late. One that passes by chance while it falls is not there."""
    loss = evidence.loss()
    if loss is None or not loss.values.shape[1]:
        return False
    # In the first steps the bias of the head learns the mean of the targets.
    is_settled = np.isfinite(loss.values[:, 0]) & (loss.steps >= evidence.first_step + EarlyLosses.FIRST)
    last = loss.values[is_settled, 0][-_STANDS:]
    quarter = len(last) // 4
    if quarter < LATE // 2:
        return False
    before = last[: len(last) // 2]
    has_fallen = np.median(last[:quarter]) - np.median(last[-quarter:]) > _left(last, quarter, quarter)
    # The median of a quarter of the losses does not show a fall that began within its last ten steps.
    has_left = np.median(before) - np.median(last[-_LEVEL:]) > _left(last, len(before), _LEVEL)
    return not (has_fallen or has_left)


def _left(losses: Array, *counts: int) -> float:
    """How far the median of so many losses must fall, whichever they are of all, to have fallen."""
    return _TIMES * error_of(noise_of(losses), *counts)


def _of_equal_probabilities(evidence: Evidence) -> Chance | None:
    """The loss of equal probabilities, if the first step or the last ones show a cross entropy of them."""
    entropy = cross_entropy_of(evidence)
    if entropy is not None:
        return None if entropy.is_negated else _equal(entropy.classes)
    head = _Head.of(evidence)
    if head is None or head.classes < 2:
        return None
    loss, count, slope = (known_median(each[-_RECENT:]) for each in (head.loss, head.elements, head.slope))
    mean = known_median(np.abs(head.mean[-_RECENT:]))
    # Outputs that vary may pass by this loss and this gradient on their way.
    hardly_vary = head.worth_of_logits(head.classes) <= _CONSTANT * loss
    is_equal = hardly_vary and has_equal_probabilities(head.classes, loss, count, slope, mean)
    return _equal(head.classes) if is_equal else None


def _equal(classes: int) -> Chance:
    return Chance(math.log(classes), f"{classes} equal probabilities")


def _of_constant_output(evidence: Evidence, late: Array) -> Chance | None:
    """The loss of an output that is the same for every sample, if the loss stands there.

    The differences of the outputs between samples can have lowered a mean squared error by their variance, and a cross entropy
    of logits by half of it times the variance of the labels around the probabilities, as long as both are small.
    """
    head = _Head.of(evidence)
    if head is None or len(late) < LATE or not _has_trained_long(evidence):
        return None
    loss = float(np.median(late))
    worth = head.worth(evidence)
    if not loss > ZERO or not worth <= _CONSTANT * loss or head.differs_more(evidence):
        return None
    entropy = cross_entropy_of(evidence)
    equal = entropy.chance if entropy is not None else math.log(2) if head.began_at_one_half(evidence) else 0.0
    if loss < _LEAST_ENTROPY * equal:
        return None
    return Chance(loss + worth, "an output that is the same for every sample")


def _of_one_half(evidence: Evidence, late: Array) -> Chance | None:
    """The loss of probabilities of one half, if the loss began near it and has come to stand exactly there.

    So it is with a loss of pairs, such as that of a ranking, whose model need not have a last layer.
    """
    first, early, half = evidence.start(*LOSS), evidence.early_losses(), math.log(2)
    if first is None or len(early) < 2 or len(late) < LATE or not _has_trained_long(evidence):
        return None
    doubt = doubt_of(late, half)
    is_there = _NEAR[0] < float(first[0]) / half < _NEAR[1] and is_at_chance(early, half) and doubt <= _EXACT * half
    if not is_there or abs(float(np.median(late)) - half) > doubt or cross_entropy_of(evidence) is not None:
        return None
    return Chance(half, ONE_HALF)


def _of_equal_scores(evidence: Evidence, late: Array) -> Chance | None:
    """The loss of equal scores of all samples of a batch, if the loss began there and is still nearly there.

    A contrastive loss chooses among the samples of a batch, or of its two views, with or without the sample itself.
    """
    head, first, facts = _Head.of(evidence), evidence.start(*LOSS), evidence.facts
    if head is None or head.classes < 2 or first is None or len(late) < LATE or not _has_trained_long(evidence):
        return None
    batches = 1 if facts is None or facts.accumulate is None else facts.accumulate
    rows = known_median(head.elements) / head.classes / batches
    now = float(np.median(late))
    if not rows >= _LEAST_SCORES or cross_entropy_of(evidence) is not None:
        return None
    for count in (rows, rows - 1, rows / 2, rows / 2 - 1):
        equal = math.log(count)
        levels = np.array([float(first[0]), now]) / equal
        if count >= _LEAST_SCORES - 1 and float(count).is_integer() and (np.abs(levels - 1) <= _ALIKE).all():
            is_near = now < equal - doubt_of(late, equal)
            return Chance(equal, f"{count:.0f} equal scores of a batch", "all scores of a batch are nearly alike", is_near)
    return None


def _has_trained_long(evidence: Evidence) -> bool:
    """Whether so much of the fit is over that outputs which hardly differ are no slow start."""
    last = None if evidence.facts is None else evidence.facts.last_step
    done = evidence.step + 1 - evidence.first_step
    return done >= (_LONG if last is None else _SHARE_OF_FIT * (last - evidence.first_step))


class _Head(NamedTuple):
    """What was measured of the last layer with weights, float64 [window] each; NaN at a step without a measurement.

    Args:
        name: of the layer.
        classes: the number of its outputs; 0 if it is unknown.
        loss: of the step.
        elements: their number in its output on a rank.
        slope: the root mean square of the gradient of its output.
        mean: the mean of that gradient.
        variance: the variance of its output over the samples of a step.
    """

    name: str
    classes: int
    loss: Array
    elements: Array
    slope: Array
    mean: Array
    variance: Array

    @classmethod
    def of(cls, evidence: Evidence) -> _Head | None:
        """The last layer of a run; None if the run does not measure it."""
        roles, loss = roles_of(evidence), evidence.loss()
        if roles is None or loss is None or not loss.values.shape[1]:
            return None
        name = last_layer(evidence, roles)
        needs = *NEEDS, ("output", "rms"), ("output", "unit_variation")
        columns = []
        for need in needs:
            track = evidence.track(*need) if need in evidence.needs else None
            if track is None or name not in track.names:
                columns.append(np.full(len(loss.steps), np.nan))
            else:
                columns.append(track.values[:, track.names.index(name)])
        count, slope, mean, size, variation = columns
        weight = roles.weight(name)
        classes = 0 if weight is None else weight.shape[0]
        return cls(name, classes, loss.values[:, 0], count / evidence.ranks, slope, mean, np.square(variation * size))

    def differs_more(self, evidence: Evidence) -> bool:
        """Whether the outputs differ more between samples than ever before, as those of a model that begins to learn."""
        is_settled = np.isfinite(self.variance) & (evidence.steps >= evidence.first_step + EarlyLosses.FIRST)
        known = self.variance[is_settled][-_STANDS:]
        if len(known) < 2:
            return False
        return bool(np.median(known[-max(len(known) // 3, 1) :]) > known[: len(known) // 2].max())

    def worth(self, evidence: Evidence) -> float:
        """How much the differences of the outputs between samples can have lowered the loss; NaN if it is not known."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            residuals = np.square(self.elements * self.slope / 2)
            if abs(known_median((residuals / self.loss)[-_RECENT:]) - 1) < _SQUARED:
                return known_median(self.variance[-_RECENT:])
        entropy = cross_entropy_of(evidence)
        if entropy is not None and not entropy.is_negated:
            return self.worth_of_logits(entropy.classes)
        return self.worth_of_logits(1) if self.began_at_one_half(evidence) else float("nan")

    def worth_of_logits(self, per_sample: int) -> float:
        """As `worth`, of the logits of a mean cross entropy. The loss is a mean over samples with so many logits each.

        NaN for logits that differ much: the small gradient of a model that has learned says nothing about their worth.
        """
        if known_median(self.variance[-_RECENT:]) > _LARGE:
            return float("nan")
        with np.errstate(invalid="ignore", over="ignore"):
            spread = known_median(np.square(self.elements * self.slope)[-_RECENT:]) / per_sample
        return known_median(self.variance[-_RECENT:]) * spread / 2

    def began_at_one_half(self, evidence: Evidence) -> bool:
        """Whether the first loss and gradient are those of the mean cross entropy of yes or no at probabilities of one half."""
        first = evidence.start(*LOSS)
        if first is None or not set(NEEDS) <= set(evidence.needs):
            return False
        count, slope = (float(starts(evidence, *need, (self.name,))[0]) for need in NEEDS[:2])
        times = 2 * slope * count / evidence.ranks, float(first[0]) / math.log(2)
        return all(abs(each - 1) < _LOGISTIC for each in times)
