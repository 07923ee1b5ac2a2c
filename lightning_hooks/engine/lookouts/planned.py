"""What a driver plans: which schedules of a learning rate it advances, and how often in the whole fit."""

from __future__ import annotations

from typing import Any, NamedTuple


class Planned(NamedTuple):
    """A schedule of a learning rate that a driver advances.

    Args:
        scheduler: the object.
        is_of_epochs: whether the driver advances it after each epoch; else after each step of the optimizer.
        advances: how often it is advanced in the whole fit.
        steps: the number of steps of the optimizer in the whole fit.
        epochs: the number of epochs of the whole fit; None for a fit that is not counted in epochs.
        batches: the number of batches in one step of the optimizer.
    """

    scheduler: Any
    is_of_epochs: bool
    advances: int
    steps: int
    epochs: int | None = None
    batches: int = 1
