"""The option `max_overhead`, which limits the overhead of a monitor: its warning, and its state in checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from lightning_hooks.engine.participants.overhead import MAX_FACTOR, Clock, Overhead, hook_cost
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.saved_state import read_count, starting_again


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

    def start(self, share: Share, clock: Clock, state: Mapping[str, Any]) -> list[str]:
        """Begin a fit.

        Args:
            share: of the monitor to limit.
            clock: the clock of overhead.
            state: the state of a checkpoint; empty without one.

        Returns:
            A sentence about each damaged entry, whose state starts again.
        """
        share.overhead = Overhead(self.limit, hook_cost(clock))
        self._factor, self._warned = 1, False
        return self.load_state_dict(share, state)

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

    def state_dict(self, share: Share) -> dict[str, Any]:
        return {"factor": share.factor} if share.factor > 1 else {}

    def load_state_dict(self, share: Share, state: Mapping[str, Any]) -> list[str]:
        """Restore the intervals of a checkpoint, if there is still a limit.

        Returns:
            A sentence about each damaged entry, whose state starts again.
        """
        damaged: list[str] = []
        if self.limit is not None:
            factor = 1
            with starting_again(damaged):
                factor = read_count(state.get("factor", 1), "factor", at_least=1, below=MAX_FACTOR + 1)
            share.widen(factor)
            self._factor = share.factor
        return damaged
