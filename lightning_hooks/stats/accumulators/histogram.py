"""The histogram of log2 magnitudes, and its quantiles. Formulas are in `stats/histogram.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.errors import RuleError
from lightning_hooks.rules.statistics import quantile_of
from lightning_hooks.stats.accumulators.base import Accumulator, RowStates
from lightning_hooks.stats.columns import Column, Reduction
from lightning_hooks.stats.histogram import BUCKETS, quantile, shift
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.schema import MAX, MIN
from lightning_hooks.stats.statistics import needs_histogram

_COLUMNS: Final = tuple(Column(f"bucket{i}", "sum") for i in range(BUCKETS))


class Histogram(Accumulator):
    """Counts of signed log2 buckets with fixed edges."""

    name = "histogram"
    columns: Sequence[Column] = _COLUMNS
    statistics = ("histogram",)
    compiled = True

    def serves(self, stat: str) -> bool:
        """As of `Accumulator`: any quantile too."""
        return needs_histogram(stat)

    def measure(self, measurement: Measurement, row: str) -> Tensor:
        """As of `Accumulator`."""
        return measurement.histogram

    def merge(self, values: Any, how: Reduction, *, over_rows: bool = False) -> Any:
        """As of `Accumulator`: every column is a count."""
        return how.total(values)

    def rescale(self, values: Tensor, factor: Tensor | float) -> Tensor:
        """As of `Accumulator`, for a factor that is a power of two: whole buckets move. Waits for the device."""
        return shift(values, round(float(np.log2(float(factor)))))

    def compute(self, stat: str, states: RowStates) -> NDArray[np.float64]:
        """As of `Accumulator`, for quantiles.

        Raises:
            RuleError: for the histogram itself, which is not one number.
        """
        q = quantile_of(stat)
        if q is None:
            raise RuleError(f"stat: {stat!r} is not one number for each row; read it with view.histogram(rows)")
        extremes = states["moments"]
        return quantile(states[self.name], q, extremes[:, MIN], extremes[:, MAX])

    def missing(self, stat: str) -> str:
        """As of `Accumulator`."""
        return "keeps no histogram; ask for 'histogram' or a quantile of it in a rule"
