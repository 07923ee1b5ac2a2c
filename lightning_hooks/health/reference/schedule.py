"""Schedule: a number of a good run by step, such as its learning rate, as the corners of straight lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.codec import row
from lightning_hooks.health.reference.observed import Observed

MOST_CORNERS: Final = 500
"""The most corners of a schedule. With 500 corners, a cosine is exact to 1e-5 of its largest value."""
_EXACT: Final = 1e-6  # of the largest value


@row
@dataclass
class Schedule:
    """A number by step.

    Args:
        tolerance: how far the numbers of the run are from the lines, as a share of the largest value.
        corners: (step, value), ascending. Between two corners the number lies on the straight line.

    Example:
        >>> schedule = Schedule.of([0, 1, 2, 3, 4], [0.1, 0.1, 0.1, 0.05, 0.05])
        >>> schedule.corners
        [(0, 0.1), (2, 0.1), (3, 0.05), (4, 0.05)]
        >>> schedule.allows(Observed.of(range(5)), 2, 0.05), schedule.allows(Observed.of(range(5)), 3, 0.05)
        (False, True)
    """

    tolerance: float
    corners: list[tuple[int, float]]

    def __post_init__(self) -> None:
        self._steps = np.array([step for step, _ in self.corners], dtype=np.float64)
        self._values = np.array([value for _, value in self.corners])
        self._slack = self.tolerance * float(np.abs(self._values).max(initial=0.0))

    @classmethod
    def of(cls, steps: Sequence[int], values: Sequence[float]) -> Schedule:
        """The schedule of the numbers at some steps, ascending. A corner has nine digits, as many as a file has room for."""
        x, y = np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64)
        tolerance = _EXACT
        corners = _corners(x, y, tolerance)
        while len(corners) > MOST_CORNERS:
            tolerance *= 4
            corners = _corners(x, y, tolerance)
        return cls(tolerance, [(int(x[i]), float(f"{y[i]:.9g}")) for i in corners])

    def at(self, step: int) -> float:
        """The number at a step; that of the nearest corner outside of the schedule."""
        return float(np.interp(step, self._steps, self._values))

    def range(self, observed: Observed, step: int) -> tuple[float, float] | None:
        """The smallest and the largest number that the run may have had at a step; None outside of the run."""
        around = observed.around(step)
        if around is None:
            return None
        ends = self.at(around[0]), self.at(around[1])
        # The lines are as exact as the tolerance says, and the run that is compared has rounded its numbers likewise.
        return min(ends) - 2 * self._slack, max(ends) + 2 * self._slack

    def allows(self, observed: Observed, step: int, value: float) -> bool:
        """Whether the run may have had this number at a step. Everything is allowed outside of the run."""
        found = self.range(observed, step)
        return found is None or found[0] <= value <= found[1]


def _corners(x: NDArray[np.float64], y: NDArray[np.float64], tolerance: float) -> list[int]:
    """The positions at which lines must bend so that no number is further from them than the tolerance.

    From each corner the line goes as far as some slope fits all numbers on the way: a cone of slopes that narrows.
    """
    slack = tolerance * float(np.abs(y).max(initial=0.0))
    corners = [0] if len(x) else []
    start, low, high = 0, -np.inf, np.inf
    for i in range(1, len(x)):
        run = x[i] - x[start]
        slope = (y[i] - y[start]) / run
        if low <= slope <= high:
            low, high = max(low, slope - slack / run), min(high, slope + slack / run)
            continue
        start = i - 1
        corners.append(start)
        run = x[i] - x[start]
        slope = (y[i] - y[start]) / run
        low, high = slope - slack / run, slope + slack / run
    if len(x) > 1:
        corners.append(len(x) - 1)
    return corners
