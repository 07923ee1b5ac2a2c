"""The accumulator of sums over pairs of gradients, and its statistics. Formulas are in `stats/pairs.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.accumulators.base import Accumulator
from lightning_hooks.stats.columns import Column
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.pairs import AVERAGES, COLUMNS, NOISE, PAIR_STATS, SIGNAL, NoiseAverage, compute, noise_estimates
from lightning_hooks.stats.row_states import RowStates
from lightning_hooks.stats.schema import COUNT, squares
from lightning_hooks.stats.stored import PAIR_NAMES, encode_pairs

Array = NDArray[np.float64]


class Pairs(Accumulator):
    """Products of a gradient with the gradient of the previous watched step, and squared norms of micro-batches' gradients.

    The monitor writes the numbers, because each needs two gradients.

    Example:
        >>> from lightning_hooks.stats.pairs import BEFORE, DOT, NOW
        >>> sums = np.zeros((1, len(COLUMNS)))
        >>> sums[0, [DOT, BEFORE, NOW]] = 6.0, 9.0, 4.0
        >>> Pairs().compute("cosine", RowStates({"pairs": sums}.__getitem__)).tolist()
        [1.0]
    """

    name = "pairs"
    columns: Sequence[Column] = COLUMNS
    statistics = PAIR_STATS
    always_scaled = True
    followed = ("noise_scale",)
    stored = PAIR_NAMES
    from_one_tensor = False
    over_steps = "mean"

    def measure(self, measurement: Measurement, row: str) -> None:
        """See `Accumulator`. Returns None: the numbers need two gradients."""
        return None

    def compute(self, stat: str, states: RowStates) -> Array:
        """See `Accumulator`."""
        return compute(stat, states[self.name], lambda: squares_of_step(states))

    def encode(self, numbers: Array) -> Array:
        """See `Accumulator`."""
        return encode_pairs(numbers)

    def is_measured(self, stat: str, states: RowStates, values: Array) -> NDArray[np.bool_]:
        """See `Accumulator`. The value is NaN without a second gradient, which therefore does not count as measured."""
        measured: NDArray[np.bool_] = super().is_measured(stat, states, values) & ~np.isnan(values)
        return measured

    def missing(self, stat: str) -> str:
        """See `Accumulator`."""
        return f"keeps no pairs of gradients; ask for {stat!r} of it in a rule"

    def history(self, asked: NDArray[np.bool_]) -> NoiseHistory | None:
        """See `Accumulator`: the averages behind the noise scale."""
        return NoiseHistory(asked) if asked.any() else None


def squares_of_step(states: RowStates) -> Array:
    """The squared norm of the sum of the gradients of all micro-batches of all ranks, float64 [...].

    The moments are those of the gradient that DDP has averaged over ranks, so the factor is the square of the number of ranks.
    """
    return squares(states["moments"]) * float(states.ranks) ** 2


class NoiseHistory:
    """The averages over steps from which the noise scale is computed, as a `History`.

    Args:
        asked: of which rows the noise scale is requested, bool [rows].
    """

    def __init__(self, asked: NDArray[np.bool_]) -> None:
        self._asked = asked
        self._averages = NoiseAverage(len(asked))

    def update(self, states: RowStates) -> Array:
        """See `History`."""
        sums = states["pairs"].copy()
        estimates = noise_estimates(sums, squares_of_step(states))
        is_new = self._asked & (states["moments"][:, COUNT] > 0)
        self._averages.take(np.where(is_new[:, None], estimates, np.nan))
        sums[:, [SIGNAL, NOISE]] = np.nan_to_num(self._averages.values, nan=0.0)
        return sums

    def state(self, row: int) -> list[float]:
        """See `History`."""
        averages: list[float] = self._averages.values[row].tolist()
        return averages

    def load(self, row: int, state: Sequence[float] | None) -> None:
        """See `History`."""
        self._averages.values[row] = (np.nan,) * AVERAGES if state is None else state
