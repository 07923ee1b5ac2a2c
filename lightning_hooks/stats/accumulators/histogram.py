"""The accumulator of the histogram of log2 magnitudes, and its quantiles. Formulas are in `stats/histogram.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.errors import RuleError
from lightning_hooks.rules.statistics import quantile_of
from lightning_hooks.stats.accumulators.base import Accumulator
from lightning_hooks.stats.columns import Column, Reduction
from lightning_hooks.stats.histogram import BUCKETS, quantile, shift
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.row_states import RowStates
from lightning_hooks.stats.schema import COUNT, MAX, MIN, NONFINITE
from lightning_hooks.stats.statistics import needs_histogram

_COLUMNS: Final = tuple(Column(f"bucket{i}", merge="sum") for i in range(BUCKETS))


class Histogram(Accumulator):
    """Counts of elements in signed log2 buckets with fixed edges, `BUCKETS` columns.

    Example:
        >>> import torch
        >>> Histogram().measure(Measurement(torch.tensor([0.0, 1.5, 1.5])), "output of layer").max().item()
        2.0
    """

    name = "histogram"
    columns: Sequence[Column] = _COLUMNS
    statistics = ("histogram",)
    compiled = True
    on_request = True
    over_steps = "total"

    def serves(self, stat: str) -> bool:
        """See `Accumulator`: the histogram, and any quantile such as 'p99'."""
        return needs_histogram(stat)

    def measure(self, measurement: Measurement, row: str) -> Tensor:
        """See `Accumulator`."""
        return measurement.histogram

    def merge(self, values: Any, how: Reduction, *, over_rows: bool = False) -> Any:
        """See `Accumulator`. Every column is a count, so one sum replaces the rule of each column."""
        return how.total(values)

    def rescale(self, values: Tensor, factor: Tensor | float) -> Tensor:
        """See `Accumulator`. The factor must be a power of two: counts move by whole buckets."""
        return shift(values, factor)

    def compute(self, stat: str, states: RowStates) -> NDArray[np.float64]:
        """See `Accumulator`, for quantiles.

        Raises:
            RuleError: `stat` is the histogram itself, which is not one number for each row.
        """
        q = quantile_of(stat)
        if q is None:
            raise RuleError(f"stat: {stat!r} is not one number for each row; read it with view.histogram(rows)")
        extremes = states["moments"]
        return quantile(states[self.name], q, extremes[:, MIN], extremes[:, MAX])

    def is_measured(self, stat: str, states: RowStates, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """See `Accumulator`. A row without a finite element counts as measured, although its histogram is empty."""
        moments = states["moments"]
        # In a window of steps, non-finite elements are those of all its steps.
        has_no_finite = (moments[:, COUNT] > 0) & (moments[:, NONFINITE] >= moments[:, COUNT])
        measured: NDArray[np.bool_] = has_no_finite | (states[self.name].sum(1) > 0)
        return measured

    def missing(self, stat: str) -> str:
        """See `Accumulator`."""
        return "keeps no histogram; ask for 'histogram' or a quantile of it in a rule"
