"""What one monitor costs, as a share of the time of a step, and how far it widens its intervals to keep a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

from lightning_hooks.engine.meter import Clock

SAMPLED_EVERY = 64
"""Hooks are timed in the first two watched steps of a kind, in the 4th, 8th, 16th and so on, and in one of so many at least."""
LEAST_STEPS = 8
LEAST_WATCHED = 2
"""So many steps, and of them watched ones, are judged together: the first step of a run and a slow one say little alone."""
WIDEST = 2**20


class Sample:
    """Times what slots do in one watched step.

    Args:
        clock: of the meter.
    """

    def __init__(self, clock: Clock) -> None:
        self.seconds = 0.0
        self.calls = 0
        self._clock = clock

    def time(self, work: Callable[[Any], None], seen: Any) -> None:
        """Do the work of one slot."""
        begun = self._clock()
        try:
            work(seen)
        finally:
            self.seconds += self._clock() - begun
            self.calls += 1


class Expense:
    """Counts steps and their cost, reports the share, and wishes for longer intervals where it is above a limit.

    What is done in hooks is timed in some watched steps only, and taken to cost the same in the others: two readings of the
    clock around every slot of every step would cost more than they are worth. `call` is what torch itself spends to call a
    hook, which no clock inside the hook can see.

    Args:
        limit: the greatest share; None for none.
        call: seconds that calling one hook costs.
    """

    def __init__(self, limit: float | None = None, call: float = 0.0) -> None:
        self.limit = limit
        self.call = call
        self._watched: Hashable | None = None
        self._sample: Sample | None = None
        self._known: dict[Hashable, float] = {}
        self._taken: dict[Hashable, int] = {}
        self._to_report = [0.0, 0.0]
        self._costs: list[tuple[float, float, bool]] = []
        self._steps = 0  # that these are of
        self._skip = 1  # the first step prepares what the others reuse

    def begin(self, key: Hashable, clock: Clock) -> Sample | None:
        """A watched step begins.

        Args:
            key: of its hooks: equal for steps that do the same in them.
            clock: of the meter.

        Returns:
            What its slots are timed with; None for most steps.
        """
        self._watched = key
        taken = self._taken[key] = self._taken.get(key, 0) + 1
        is_power = taken & (taken - 1) == 0
        self._sample = Sample(clock) if is_power or taken % SAMPLED_EVERY == 0 else None
        return self._sample

    def lap(self, own: float, wall: float | None, steps: int = 1) -> None:
        """A step is over.

        Args:
            own: seconds that were spent on watching, hooks apart.
            wall: seconds of the step; None where they are not known.
            steps: of how many steps this is the time; of several only the first was watched, if any.
        """
        key, self._watched = self._watched, None
        if self._sample is not None:
            self._known[key] = self._sample.seconds + self._sample.calls * self.call
            self._sample = None
        if key is not None:
            own += self._known.get(key, 0.0)
        if wall is None or wall <= 0.0:
            return
        self._to_report[0] += own
        self._to_report[1] += wall
        if self.limit is None:
            return
        if self._skip:
            self._skip -= 1
        else:
            self._costs.append((own, wall, key is not None))
            self._steps += steps

    def report(self) -> dict[str, float]:
        """The share over the steps since the last report; nothing where there was no step."""
        own, wall = self._to_report
        self._to_report = [0.0, 0.0]
        return {"hooks/overhead": own / wall} if wall else {}

    def wish(self, factor: int) -> int:
        """By how much the intervals should be longer than the user wrote.

        Args:
            factor: by how much they are.
        """
        costs = self._costs
        if self.limit is None or self._steps < LEAST_STEPS or sum(watched for *_, watched in costs) < LEAST_WATCHED:
            return factor
        self._costs, self._steps = [], 0
        share = _share(costs)
        floor = _share([cost for cost in costs if not cost[2]])
        if share <= self.limit or floor >= self.limit:  # what steps cost that are not watched, no interval changes
            return factor
        # Of own and all other time, the first is to shrink until the limit is kept, and each doubling halves it at best.
        needed = share / (1.0 - share) * (1.0 - self.limit) / self.limit if share < 1.0 else WIDEST
        return int(min(factor * 2 ** max(1, math.ceil(math.log2(needed) - 1e-9)), WIDEST))

    def begin_anew(self) -> None:
        """The intervals are others: what was counted before says nothing about them."""
        self._costs, self._steps, self._skip = [], 0, 1


def _share(costs: list[tuple[float, float, bool]]) -> float:
    wall = sum(each for _, each, _ in costs)
    return sum(own for own, _, _ in costs) / wall if wall else 0.0
