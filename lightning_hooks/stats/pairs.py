"""Statistics of pairs of gradients: of two consecutive watched steps, and of the micro-batches of one step.

The gradient noise scale is that of McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), appendix A.1. From
the squared norms of the gradients of a small and of a large batch follow unbiased estimates of |G|², the squared norm of the
true gradient, and of S, the trace of the covariance of the gradient of one example,

    |G|² = (B_big |G_big|² - B_small |G_small|²) / (B_big - B_small)
    S    = (|G_small|² - |G_big|²) / (1/B_small - 1/B_big),

each of which is averaged over steps before the ratio S / |G|² is computed. Here the small batch is one micro-batch of one rank,
and the large batch is the union of all micro-batches of a step. So the unit of the noise scale is micro-batches: multiplied by
the number of examples in a micro-batch, it is the batch size above which larger batches bring diminishing returns. The
estimates assume that micro-batches are drawn independently and have equal sizes, that the loss is a mean over examples, and
that all micro-batches of a step are computed with the same weights (as with gradient accumulation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.columns import Column
from lightning_hooks.stats.row_states import Numbers

Array = NDArray[np.float64]

PAIR_STATS: Final = ("cosine", "micro_cosine", "noise_scale")
DOT, BEFORE, NOW, SMALL, PARTS, SIGNAL, NOISE = range(7)
"""The columns of a row. DOT is the product of the gradient of this step and that of the previous watched step; BEFORE and NOW
are the squared norms of the previous and of this gradient. SMALL is the sum of the squared norms of the micro-batches'
gradients, and PARTS their number. SIGNAL and NOISE are the averages over steps of the estimates of |G|² and S, 0 before the
first estimate."""
COLUMNS: Final = (
    Column("dot", merge="sum"),
    Column("before", merge="sum"),
    Column("now", merge="sum"),
    # Add up the micro-batches of all ranks (`every_rank`): each rank has its own, although all hold the same averaged gradient.
    Column("small", merge="sum", power=2, every_rank=True),
    Column("parts", merge="sum", every_rank=True, over_rows="max"),
    # `NoiseHistory` writes the averages over steps after the ranks have been merged.
    Column("signal", merge="sum", every_rank=True),
    Column("noise", merge="sum", every_rank=True),
)
AVERAGES: Final = 2  # the number of columns that `NoiseAverage` continues from step to step
DECAY: Final = 0.95
"""The weight of the previous average in the exponential averages of the noise scale, which span about twenty watched steps."""


def compute(stat: str, sums: Numbers, square: Callable[[], Array]) -> Array:
    """One statistic of pairs, for the accumulator of pairs and for the rows of an event file.

    Args:
        stat: one of `PAIR_STATS`.
        sums: float64 [..., 7], an array or `SeparateColumns`.
        square: returns the `square` of `micro_cosine`.

    Returns:
        float64 [...]; NaN for a row without a value.
    """
    if stat == "cosine":
        return cosine(sums)
    return noise_scale(sums) if stat == "noise_scale" else micro_cosine(sums, square())


def cosine(sums: Numbers) -> Array:
    """The cosine between the gradient of this step and the gradient of the previous watched step.

    Args:
        sums: float64 [..., 7]; for a group of rows the sums over the members that were compared.

    Returns:
        float64 [...]; NaN if there is no previous gradient, or if one of the two gradients is zero. Checkpoints contain no
        gradients, so there is none at the first watched step of a resumed run.

    Example:
        >>> cosine(np.array([[6.0, 9.0, 4.0, 0.0, 0.0, 0.0, 0.0]])).tolist()
        [1.0]
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return sums[..., DOT] / np.sqrt(sums[..., BEFORE] * sums[..., NOW])


def micro_cosine(sums: Numbers, square: Array) -> Array:
    """The agreement of the gradients of micro-batches: the mean product of two gradients over the mean squared norm.

    The formula is (|Σg|² - Σ|g|²) / ((n-1) Σ|g|²) for n gradients g. The value is 1 if all gradients are equal, 0 if they are
    unrelated, and -1/(n-1) if their sum is zero. If all norms are equal, the value is the mean cosine of two gradients.

    Args:
        sums: float64 [..., 7].
        square: the squared norm of the sum of the micro-batches' gradients, float64 [...].

    Returns:
        float64 [...]; NaN if there are fewer than two micro-batches.

    Example:
        >>> micro_cosine(np.array([[0.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0]]), np.array([4.0])).tolist()
        [1.0]
    """
    parts, small = sums[..., PARTS], sums[..., SMALL]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.where(parts > 1, (square - small) / ((parts - 1) * small), np.nan)


def noise_estimates(sums: Numbers, square: Array) -> Array:
    """The unbiased estimates of |G|² and S of one step, in units of micro-batches.

    Args:
        sums: float64 [..., 7].
        square: the squared norm of the sum of the micro-batches' gradients, float64 [...].

    Returns:
        float64 [..., 2]; NaN if there are fewer than two micro-batches.

    Example:
        >>> noise_estimates(np.array([[0.0, 0.0, 0.0, 10.0, 2.0, 0.0, 0.0]]), np.array([16.0])).tolist()
        [[3.0, 2.0]]
    """
    n = sums[..., PARTS]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        big, small = square / n**2, sums[..., SMALL] / n
        estimates = np.stack([(n * big - small) / (n - 1), (small - big) * n / (n - 1)], axis=-1)
    return np.where(n[..., None] > 1, estimates, np.nan)


def noise_scale(sums: Numbers) -> Array:
    """The noise scale in micro-batches: the average of S over the average of |G|².

    Squared norms of the parts of a vector add up, so the averages of a group of rows are the sums over its rows.

    Args:
        sums: float64 [..., 7].

    Returns:
        float64 [...]; NaN if there is no estimate yet, or if the average of |G|² is not positive, because the noise hides the
        gradient.

    Example:
        >>> noise_scale(np.array([[0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 6.0]])).tolist()
        [3.0]
    """
    signal, noise = sums[..., SIGNAL], sums[..., NOISE]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.where(signal > 0, noise / signal, np.nan)


class NoiseAverage:
    """Exponential averages over steps of the estimates of |G|² and S.

    Both averages have the same weights, so their ratio needs no correction for a short history.

    Args:
        rows: the number of rows.

    Attributes:
        values: the averages, float64 [rows, 2]; NaN before the first estimate.

    Example:
        >>> average = NoiseAverage(1)
        >>> average.take(np.array([[3.0, 2.0]]))
        >>> average.take(np.array([[np.nan, np.nan]]))
        >>> average.values.tolist()
        [[3.0, 2.0]]
    """

    def __init__(self, rows: int) -> None:
        self.values: Array = np.full((rows, 2), np.nan)

    def take(self, estimates: Array) -> None:
        """Update the averages with the estimates of a step, float64 [rows, 2]. Rows with a NaN do not change."""
        new = np.isfinite(estimates).all(1)
        first = new & np.isnan(self.values).any(1)
        self.values[first] = estimates[first]
        later = new & ~first
        self.values[later] = DECAY * self.values[later] + (1 - DECAY) * estimates[later]
