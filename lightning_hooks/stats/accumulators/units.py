"""The accumulator of units: channels, features, heads or experts. Formulas, axis and reference kernel are in `stats/units/`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.accumulators.base import Accumulator, AccumulatorRows
from lightning_hooks.stats.accumulators.store import Store, StoreContext
from lightning_hooks.stats.accumulators.unit_store import UnitStore
from lightning_hooks.stats.columns import Column
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.row_states import RowStates
from lightning_hooks.stats.units.statistics import NAMES

_COLUMNS: Final = (Column("units", merge="max"), *(Column(name, merge="max") for name in NAMES))


class Units(Accumulator):
    """The number of units of a row and the statistics of its units. Step views and event files hold these, not the units.

    A `UnitStore` keeps the units during a step, and computes the statistics when the step has ended.

    Example:
        >>> rows = np.array([[3.0] + [0.25] * len(NAMES), [0.0] * (1 + len(NAMES))])  # the second row was not measured
        >>> Units().compute("dead_units", RowStates({"units": rows}.__getitem__)).tolist()
        [0.25, nan]
    """

    name = "units"
    columns: Sequence[Column] = _COLUMNS
    statistics = NAMES
    from_one_tensor = False
    separate = True
    on_request = True

    def measure(self, measurement: Measurement, row: str) -> None:
        """See `Accumulator`. Returns None: the store measures the units."""
        return None

    def store(self, kept: AccumulatorRows, context: StoreContext) -> Store:
        """See `Accumulator`."""
        return UnitStore(kept.rows, kept.options, len(self.columns), context)

    def compute(self, stat: str, states: RowStates) -> NDArray[np.float64]:
        """See `Accumulator`."""
        rows = states[self.name]
        return np.where(rows[:, 0] > 0, rows[:, 1 + NAMES.index(stat)], np.nan)

    def is_measured(self, stat: str, states: RowStates, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """See `Accumulator`."""
        measured: NDArray[np.bool_] = states[self.name][:, 0] > 0
        return measured
