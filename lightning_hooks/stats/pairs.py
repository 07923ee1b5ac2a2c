"""Statistics of pairs of gradients: with the one before, and between the micro-batches of a step.

The gradient noise scale is that of McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), appendix A.1: from
the squared norms of gradients of a small and of a large batch follow unbiased estimates of |G|², the squared norm of the true
gradient, and of S, the trace of the covariance of the gradient of one example,

    |G|² = (B_big |G_big|² - B_small |G_small|²) / (B_big - B_small)
    S    = (|G_small|² - |G_big|²) / (1/B_small - 1/B_big),

each of which is averaged over steps before their ratio S / |G|² is taken. Here a small batch is one micro-batch of one rank and
the large one is all of a step, so the scale is in micro-batches: multiplied by the examples of one it is the batch size
above which larger batches bring diminishing returns. It assumes that micro-batches are drawn independently and are of one size,
that the loss is a mean over examples, and that all of them see the weights of the last optimizer step (as with accumulation).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.columns import Column

Array = NDArray[np.float64]

PAIR_STATS: Final = ("cosine", "micro_cosine", "noise_scale")
DOT, BEFORE, NOW, SMALL, PARTS, SIGNAL, NOISE = range(7)
"""Columns of the sums of a row: product with the gradient before, squared norms of that and of this one; squared norms and
number of the parts; averages over steps of the estimates of |G|² and S, 0 before the first."""
COLUMNS: Final = (
    Column("dot", "sum"),
    Column("before", "sum"),
    Column("now", "sum"),
    # The micro-batches of each rank are separate parts, also where the gradient that follows from them is a copy.
    Column("small", "sum", power=2, every_rank=True),
    Column("parts", "sum", every_rank=True, over_rows="max"),
    # The averages over steps are filled in when ranks were merged.
    Column("signal", "sum", every_rank=True),
    Column("noise", "sum", every_rank=True),
)
AVERAGES: Final = 2
DECAY: Final = 0.95
"""The weight on the past in the averages behind the noise scale, which span about twenty watched steps."""


def cosine(sums: Array) -> Array:
    """The cosine between the gradient of this step and that of the watched step before.

    Args:
        sums: [rows, 7]; of a group of rows those of the members that were compared.

    Returns:
        [rows]; NaN where there was no previous gradient (checkpoints contain none, so also at the first watched step of a
        resumed run), or where one of the two is zero.

    Example:
        >>> cosine(np.array([[6.0, 9.0, 4.0, 0.0, 0.0, 0.0, 0.0]])).tolist()
        [1.0]
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[:, DOT] / np.sqrt(sums[:, BEFORE] * sums[:, NOW])


def micro_cosine(sums: Array, square: Array) -> Array:
    """How much the gradients of the micro-batches agree: the mean product of two of them over their mean squared norm.

    1 if all agree, 0 if they are unrelated, down to -1/(n-1) if they cancel. If all have the same norm it is the mean cosine of
    two of them: (|Σg|² - Σ|g|²) / ((n-1) Σ|g|²).

    Args:
        sums: [rows, 7].
        square: squared norm of the sum of the micro-batches' gradients [rows].

    Returns:
        [rows]; NaN where there are fewer than two micro-batches.

    Example:
        >>> micro_cosine(np.array([[0.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0]]), np.array([4.0])).tolist()
        [1.0]
    """
    parts, small = sums[:, PARTS], sums[:, SMALL]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(parts > 1, (square - small) / ((parts - 1) * small), np.nan)


def noise_estimates(sums: Array, square: Array) -> Array:
    """The unbiased estimates of |G|² and S of one step, in units of micro-batches.

    Args:
        sums: [rows, 7].
        square: squared norm of the sum of the micro-batches' gradients [rows].

    Returns:
        [rows, 2]; NaN where there are fewer than two micro-batches.

    Example:
        >>> noise_estimates(np.array([[0.0, 0.0, 0.0, 10.0, 2.0, 0.0, 0.0]]), np.array([16.0])).tolist()
        [[3.0, 2.0]]
    """
    n = sums[:, PARTS]
    with np.errstate(invalid="ignore", divide="ignore"):
        big, small = square / n**2, sums[:, SMALL] / n
        estimates = np.stack([(n * big - small) / (n - 1), (small - big) * n / (n - 1)], axis=1)
    return np.where(n[:, None] > 1, estimates, np.nan)


def noise_scale(sums: Array) -> Array:
    """The noise scale in micro-batches, from the averages of both estimates.

    Squared norms of the parts of a vector add, so the averages of a group of rows are the sums of those of its rows.

    Args:
        sums: [rows, 7].

    Returns:
        [rows]; NaN where nothing was measured, or the average of |G|² is not above 0: the noise hides the gradient.

    Example:
        >>> noise_scale(np.array([[0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 6.0]])).tolist()
        [3.0]
    """
    signal, noise = sums[:, SIGNAL], sums[:, NOISE]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(signal > 0, noise / signal, np.nan)


class NoiseAverage:
    """Exponential averages of the two estimates, for each row.

    Both have the same weights, so their ratio needs no correction for a short history.
    """

    def __init__(self, rows: int) -> None:
        self.values: Array = np.full((rows, 2), np.nan)

    def take(self, estimates: Array) -> None:
        """Update the averages with the estimates of a step [rows, 2]; rows with NaN do not change."""
        new = np.isfinite(estimates).all(1)
        first = new & np.isnan(self.values).any(1)
        self.values[first] = estimates[first]
        later = new & ~first
        self.values[later] = DECAY * self.values[later] + (1 - DECAY) * estimates[later]
