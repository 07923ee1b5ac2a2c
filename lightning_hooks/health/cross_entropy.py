"""What a run shows of its loss without its labels: that it is a cross entropy, and what that is at chance."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.layers import last_layer
from lightning_hooks.health.roles import roles_of, starts

_GRADIENT: Final = 0.1  # the relative difference from the gradient of equal probabilities
_LOSS: Final = (0.9, 1.3)  # the first loss as a multiple of that of equal probabilities
_MEAN: Final = 2e-3
"""The gradients of logits sum up to 0; their mean may be this share of their root mean square, because of rounding."""
_KNOWS: Final = 0.5
"""A first loss that is a smaller share of that of equal probabilities is that of a model which has learned before."""
_OF_SQUARE: Final = 1.05
"""The least quotient of a cross entropy and the square of its gradient. The law is 1.22: the entropy is at least 2.45 times the
square of what a probability lacks to 1, and that at least half of the squared gradient. Some of it is left for rounding."""
_OF_SLOPE: Final = 2.0
"""The cross entropy of a sample is at most about this multiple of its gradient if the right class has a quarter or more."""
_SMOOTHING: Final = 0.1  # the share of a label that is usually given to all classes alike
NEEDS: Final = ("output", "count"), ("output_grad", "rms"), ("output_grad", "mean")
"""What is read of the last layer."""
_FAR_APART: Final = 1.5
"""The standard deviation of outputs between samples from which on they show by the first loss that they fit the labels."""
_SQUARED: Final = 0.01  # the relative difference up to which a loss is a mean squared error, because of rounding
_OF_VARIANCE: Final = 0.8
"""The share of the variance of its outputs that is less than a squared error of chance, with room for a small batch."""
_SPREAD: Final = ("output", "rms"), ("output", "unit_variation")
"""What is read of the last layer where a rule of the run collects it."""


class CrossEntropy(NamedTuple):
    """The mean cross entropy of the last layer's output.

    Args:
        classes: their number.
        is_negated: whether the loss has the wrong sign.
    """

    classes: int
    is_negated: bool

    @property
    def chance(self) -> float:
        """The cross entropy of equal probabilities."""
        return math.log(self.classes)


def begins_trained(evidence: Evidence) -> bool:
    """Whether a run goes on from trained weights: its first loss is less than that of outputs which know nothing can be.

    The gradient of the logits of each sample sums up to 0, as that of a cross entropy does. A mean squared error, of which a
    small loss says nothing, has another gradient. A loss of equal probabilities that is scaled down has a gradient that is
    scaled down likewise. A loss of margins or a focal one is smaller than a cross entropy with its gradient can be, and one of
    squared probabilities is larger than that of few errors. Smoothed labels add their entropy to the loss.

    If the gradient shows no such loss, the outputs do: where they differ by 1.5 or more from sample to sample and have
    nothing to do with the labels, a squared error is at least 2 and a cross entropy, of yes or no too, at least ln(2). That
    of any outputs which know nothing is at least their variance.

    Args:
        evidence: of the run.
    """
    if _knows_by_outputs(evidence):
        return True
    first = _first(evidence)
    if first is None:
        return False
    classes, loss, count, slope, mean = first
    if not slope > 0 or abs(mean) > _MEAN * slope or not 0 <= loss < _KNOWS * math.log(classes):
        return False
    scale = slope * count / math.sqrt(classes - 1)
    least, most = _OF_SQUARE * scale**2 * (classes - 1) / classes, min(_OF_SLOPE, _LOSS[0] * math.log(classes)) * scale
    smoothed = _entropy_of_smoothed(classes)
    return least <= loss < most or max(least, smoothed) <= loss < smoothed + most


def _knows_by_outputs(evidence: Evidence) -> bool:
    """Whether the first loss is less than that of outputs which differ as much as those of the head, and know nothing."""
    roles, first = roles_of(evidence), evidence.start(*LOSS)
    if roles is None or first is None or not len(first) or not {*NEEDS, *_SPREAD} <= set(evidence.needs):
        return False
    last, loss = last_layer(evidence, roles), float(first[0])
    count, slope, size, variation = (float(starts(evidence, *need, (last,))[0]) for need in (*NEEDS[:2], *_SPREAD))
    apart, residual = size * variation, count / evidence.ranks * slope / 2
    is_squared = loss > 0 and abs(residual**2 / loss - 1) < _SQUARED
    return 0 <= loss < math.log(2) and apart >= _FAR_APART or is_squared and loss < _OF_VARIANCE * apart**2


def _entropy_of_smoothed(classes: int) -> float:
    """The least cross entropy of labels that are smoothed as usual, which has no gradient."""
    other = _SMOOTHING / classes
    right = 1 - _SMOOTHING + other
    return -right * math.log(right) - (classes - 1) * other * math.log(other)


def cross_entropy_of(evidence: Evidence) -> CrossEntropy | None:
    """The loss, if its first value and its first gradient are those of the cross entropy of a head that knows nothing yet.

    Equal probabilities of C classes have the loss ln(C). The gradient of the logits of a sample is then 1/C, less 1 at its
    label, divided by the number of samples: only a mean cross entropy has this root mean square and a mean of 0.

    Args:
        evidence: of the run.

    Returns:
        None if the run does not show it, such as one that goes on from trained weights.
    """
    first = _first(evidence)
    if first is None:
        return None
    classes, loss, count, slope, mean = first
    is_entropy = has_equal_probabilities(classes, abs(loss), count, slope, mean)
    return CrossEntropy(classes, is_negated=bool(np.signbit(loss))) if is_entropy else None


def _first(evidence: Evidence) -> tuple[int, float, float, float, float] | None:
    """The outputs of the last layer, the first loss, the elements, and the slope and mean of their gradient."""
    roles, first = roles_of(evidence), evidence.start(*LOSS)
    if roles is None or first is None or not len(first) or not set(NEEDS) <= set(evidence.needs):
        return None
    last = last_layer(evidence, roles)
    weight = roles.weight(last)
    if weight is None or weight.shape[0] < 2:
        return None
    count, slope, mean = (float(starts(evidence, *need, (last,))[0]) for need in NEEDS)
    return weight.shape[0], float(first[0]), count / evidence.ranks, slope, mean


def has_equal_probabilities(classes: int, loss: float, count: float, slope: float, mean: float) -> bool:
    """Whether a loss and the gradient of the logits are those of a mean cross entropy of equal probabilities.

    Args:
        classes: their number.
        loss: its value.
        count: the number of logits of a rank. The loss of a rank is the mean over the samples of that rank only.
        slope: the root mean square of the gradient.
        mean: of the gradient. The gradients of a sample cancel, but those of a mean squared error do not.
    """
    if not _LOSS[0] < loss / math.log(classes) < _LOSS[1] or not abs(mean) <= _MEAN * slope:
        return False
    return abs(slope * count / math.sqrt(classes - 1) - 1) < _GRADIENT
