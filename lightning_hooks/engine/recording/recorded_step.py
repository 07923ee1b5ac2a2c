"""The step of a record: the numbers that a recorder has of it, from which the record is written."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from lightning_hooks.engine.recording.extremes import Extremes
from lightning_hooks.engine.recording.last_finite import LastFinite
from lightning_hooks.engine.recording.recorded_rows import Array, rows_by_tensor
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import LOSS
from lightning_hooks.recorder.calls import Calls
from lightning_hooks.recorder.record import Growth
from lightning_hooks.stats.schema import COUNT, NONFINITE


@dataclass(frozen=True)
class RecordedStep:
    """What a recorder knows of one step.

    Args:
        step: the step.
        micro_batch: the number of its last batch, from 0.
        plan: the rows of the recorder.
        moments: of all rows in the step, float64 [rows, 9].
        calls: the measurements in the order of the calls.
        extremes: the largest magnitudes of the last steps.
        last_finite: knows after which update a parameter was last finite.
        is_immediate: whether the model still has the weights and gradients of the step.
        has_read_gradients: whether no layer was called since the gradients were looked at, so that the update has read these.
    """

    step: int
    micro_batch: int
    plan: Plan
    moments: Array
    calls: Calls
    extremes: Extremes
    last_finite: LastFinite
    is_immediate: bool
    has_read_gradients: bool

    @property
    def has_loss(self) -> bool:
        """Whether the loss was measured: nobody may have noted it."""
        return bool((self.moments[rows_by_tensor(self.plan)[LOSS], COUNT] > 0).any())

    @property
    def is_loss_finite(self) -> bool | None:
        """Whether the loss is finite; None if it was not measured."""
        return not self.nonfinite_names(LOSS) if self.has_loss else None

    @property
    def tolerated_rows(self) -> Set[int]:
        """The rows that have had numbers that are not finite in a step whose loss and gradients were finite, as masks have."""
        return self.extremes.tolerated_rows

    def nonfinite_names(self, tensor: str) -> tuple[str, ...]:
        """The names of the rows of a tensor that are not finite."""
        rows = rows_by_tensor(self.plan).get(tensor, np.empty(0, np.intp))
        return tuple(self.plan.rows[int(row)].name for row in rows if self.moments[row, NONFINITE] > 0)

    def growth_of(self, name: str, tensor: str) -> Growth | None:
        """The largest magnitudes of a row at the last steps, this one included; None if there is no such row."""
        return self.extremes.growth_of(name, tensor, self.moments, self.step)
