"""Extremes: the largest magnitudes of the rows of a recorder at the last steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.plan.plan import Plan
from lightning_hooks.recorder.record import Growth
from lightning_hooks.stats.row_states import SeparateColumns
from lightning_hooks.stats.schema import COUNT, MAX, MIN, NONFINITE
from lightning_hooks.stats.statistics import compute

Array = NDArray[np.float64]


class Extremes:
    """Keeps the least and the greatest element of each row at the last steps.

    Args:
        plan: the rows.
        last: the number of steps that are kept.

    Attributes:
        tolerated_rows: the rows that have had numbers that are not finite in a step whose loss and gradients were finite.
    """

    def __init__(self, plan: Plan, last: int) -> None:
        self.tolerated_rows: set[int] = set()
        self._plan = plan
        self._extremes: Array = np.zeros((last, len(plan.rows), 2))
        self._steps: NDArray[np.int64] = np.full(last, -1, np.int64)
        self._count = 0

    def keep(self, moments: Array, step: int) -> None:
        """Keep the extremes of a step.

        Args:
            moments: of all rows, float64 [rows, 9].
            step: the step.
        """
        slot = self._count % len(self._steps)
        self._extremes[slot] = moments[:, MIN : MAX + 1]
        self._steps[slot] = step
        self._count += 1

    def tolerate_nonfinite(self, moments: Array) -> None:
        """Tolerate the rows that have numbers that are not finite, since the step went well with them."""
        self.tolerated_rows.update(np.flatnonzero(moments[:, NONFINITE] > 0).tolist())

    def growth_of(self, name: str, tensor: str, moments: Array, step: int) -> Growth | None:
        """The largest magnitudes of a row at the last steps; None if there is no such row.

        Args:
            name: of its module or parameter.
            tensor: of the row.
            moments: of the step under way, which is included.
            step: the step under way.
        """
        row = next((row.index for row in self._plan.rows if (row.name, row.tensor) == (name, tensor)), None)
        if row is None:
            return None
        kept = min(self._count, len(self._steps))
        slots = [(self._count - kept + i) % len(self._steps) for i in range(kept)]
        steps, ends = self._steps[slots], self._extremes[slots, row]
        now = moments[row]
        if now[COUNT] > 0 and step not in steps:
            steps, ends = np.append(steps, step), np.append(ends, now[None, MIN : MAX + 1], axis=0)
        low, high = ends.T
        # Skip steps in which the row was not measured: its minimum is infinity there, and its maximum minus infinity.
        columns = {COUNT: (low <= high).astype(np.float64), MIN: low, MAX: high}
        values = compute("abs_max", SeparateColumns(columns.__getitem__))
        has_value = ~np.isnan(values)
        return Growth(name, tensor, tuple(steps[has_value].tolist()), tuple(values[has_value].tolist()))
