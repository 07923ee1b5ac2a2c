"""What rules have read of a window, kept until the next step: several rules that look at one step read the same statistic."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.health.track import Track
from lightning_hooks.health.window import Key


@dataclass(slots=True)
class Reading:
    """What has been read at one step by rules that have judged the same steps.

    Args:
        new: the part of the window that they have not judged.
        new_steps: the steps of rows in this part; None until they are asked for.
        tracks: by tensor and statistic; None for a pair of which nothing is measured.
    """

    new: slice
    new_steps: NDArray[np.int64] | None = None
    tracks: dict[Key, Track | None] = field(default_factory=dict)


class Readings:
    """The readings at one step, by the last step that the rules have judged which read.

    Example:
        >>> readings, steps = Readings(), np.arange(5)
        >>> readings.judge_after(2)
        >>> readings.now(steps).new
        slice(3, 5, None)
    """

    def __init__(self) -> None:
        self._judged_until = -1
        self._readings: dict[int, Reading] = {}
        self._now: Reading | None = None

    def judge_after(self, step: int) -> None:
        """Make the steps after this one the new ones, for the rule that looks next."""
        if step != self._judged_until:
            self._judged_until, self._now = step, self._readings.get(step)

    def now(self, steps: NDArray[np.int64]) -> Reading:
        """The reading for the rule that looks next.

        Args:
            steps: of the window, ascending.
        """
        if self._now is None:
            new = slice(int(steps.searchsorted(self._judged_until, side="right")), steps.size)
            self._now = self._readings[self._judged_until] = Reading(new)
        return self._now

    def forget(self) -> None:
        """Forget all readings, because the window has changed."""
        self._readings, self._now = {}, None

    def go_back(self, step: int) -> None:
        """Count a step and later ones as judged by no rule."""
        self._judged_until = min(self._judged_until, step - 1)
