"""The batches of a run, as marks in the trail of a recorder."""

from __future__ import annotations

from collections import deque
from typing import Final

from lightning_hooks.recorder.calls import Mark

_KEPT: Final = 4096
"""The marks that are kept, the last ones."""


class BatchMarks:
    """Notes at which measurement each batch begins.

    Attributes:
        step: the step that has begun last.
        updates: the optimizers that have stepped since the batch began.
        after_update: whether an optimizer stepped between this batch and the one before, or this is the first batch.
    """

    def __init__(self) -> None:
        self.step = -1
        self.updates = 0
        self.after_update = True
        self._marks: deque[Mark] = deque(maxlen=_KEPT)

    @property
    def micro_batch(self) -> int:
        """The number of the batch under way in its step, from 0."""
        return self._marks[-1].micro_batch if self._marks else 0

    @property
    def all(self) -> tuple[Mark, ...]:
        return tuple(self._marks)

    def begin_batch(self, measurements: int) -> None:
        """Note that a batch begins.

        Args:
            measurements: the number of measurements so far.
        """
        last = self._marks[-1] if self._marks else Mark(0, -1, 0)
        is_same_step = last.step == self.step
        # Each callback of this package announces a batch. Mark only the first announcement.
        if is_same_step and last.first == measurements:
            return
        self.after_update = self.updates > 0 or not self._marks
        self._marks.append(Mark(measurements, self.step, last.micro_batch + 1 if is_same_step else 0))
        self.updates = 0
