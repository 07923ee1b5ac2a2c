"""The accumulator of raw moments, which every row keeps. Formulas and merge are in `stats/schema.py` and `stats/moments.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats import moments, schema
from lightning_hooks.stats.accumulators.base import Accumulator
from lightning_hooks.stats.columns import Column, Reduction
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.row_states import RowStates
from lightning_hooks.stats.statistics import STATISTICS, compute
from lightning_hooks.stats.stored import MOMENT_NAMES, encode_moments


class Moments(Accumulator):
    """Count, mean, sum of squared deviations, extremes and counts of special values, in the order of `schema.MOMENTS`.

    Example:
        >>> import torch
        >>> Moments().measure(Measurement(torch.tensor([1.0, 3.0])), "output of layer")[:3].tolist()
        [2.0, 2.0, 2.0]
    """

    name = "moments"
    columns: Sequence[Column] = schema.MOMENTS
    statistics = ("count", *STATISTICS)
    compiled = True
    over_steps = "mean"
    stored = MOMENT_NAMES

    def measure(self, measurement: Measurement, row: str) -> Tensor:
        """See `Accumulator`."""
        return measurement.moments

    def merge(self, values: Any, how: Reduction, *, over_rows: bool = False) -> Any:
        """See `Accumulator`. `schema.merge_moments` merges means and squared deviations by Chan's rule."""
        return schema.merge_moments(values, how)

    def rescale(self, values: Tensor, factor: Tensor | float) -> Tensor:
        """See `Accumulator`."""
        return moments.rescale(values, factor)

    def encode(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Accumulator`."""
        return encode_moments(numbers)

    def compute(self, stat: str, states: RowStates) -> NDArray[np.float64]:
        """See `Accumulator`."""
        return compute(stat, states[self.name])
