"""The option `max_overhead`, which limits the overhead of a monitor: its warning, and its state in checkpoints."""

from __future__ import annotations

import warnings

from lightning_hooks.engine.participants.overhead import Clock, Overhead, hook_cost
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.rules.schedule import EveryN


class OverheadLimit:
    """Sets the limit of a share, warns once when its intervals have grown, and saves them in checkpoints.

    Args:
        limit: the maximum share of the step time; None for no limit.
        schedule: the schedule of the monitor as the user wrote it.
    """

    def __init__(self, limit: float | None, schedule: EveryN) -> None:
        self.limit = limit
        self._schedule = schedule
        self._factor = 1
        self._warned = False

    def start(self, share: Share, clock: Clock, factor: int = 1) -> None:
        """Begin a fit.

        Args:
            share: of the monitor to limit.
            clock: the clock of overhead.
            factor: by which the intervals of a checkpoint were longer; 1 without one.
        """
        share.overhead = Overhead(self.limit, hook_cost(clock))
        self._factor, self._warned = 1, False
        self.continue_from(share, factor)

    def warn(self, share: Share) -> None:
        """Warn once when the ranks have agreed on longer intervals."""
        before, self._factor = self._factor, share.factor
        if self._factor == before or self._warned:
            return
        self._warned = True
        old, new = self._schedule.widened(before), self._schedule.widened(self._factor)
        change = f"every_n_steps goes from {old.every} to {new.every}"
        if old.steps is not None:
            change = f"of the {len(old.steps)} steps of every_n_steps {len(new.steps or ())} are left"
        warnings.warn(
            f"watching takes a larger share of a step than max_overhead={self.limit:g} (`watch/run/overhead`): {change}, "
            "intervals of individual rules grow by the same factor. They may grow again without another warning",
            stacklevel=2,
        )

    def continue_from(self, share: Share, factor: int) -> None:
        """Restore the intervals of a checkpoint, if there is still a limit."""
        if self.limit is not None:
            share.widen(factor)
            self._factor = share.factor
