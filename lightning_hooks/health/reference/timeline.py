"""Timeline: a fact of a good run by step, which hardly ever changes; and what several good runs say of a step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lightning_hooks.codec import bare
from lightning_hooks.health.reference.observed import Observed

T = TypeVar("T", bound=Hashable)


@bare
@dataclass
class Timeline(Generic[T]):
    """A value by step.

    Args:
        changes: (step, value) at each step at which the value changed, ascending.

    Example:
        >>> timeline = Timeline([(0, "a"), (10, "b")])
        >>> timeline.at(9), timeline.at(10), sorted(timeline.values(Observed.of([0, 5, 10]), 7))
        ('a', 'b', ['a', 'b'])
    """

    changes: list[tuple[int, T]] = field(default_factory=list)

    def add(self, step: int, value: T) -> None:
        """Add the value of the next step."""
        if not self.changes or self.changes[-1][1] != value:
            self.changes.append((step, value))

    def at(self, step: int) -> T:
        """The value at a step; before the first change that of the first change."""
        position = bisect_right(self.changes, step, key=lambda change: change[0])
        return self.changes[max(0, position - 1)][1]

    def values(self, observed: Observed, step: int) -> set[T]:
        """The values that the run may have had at a step: two if it changed between the watched steps around it.

        Empty outside of the run, or if the run has no value.
        """
        around = observed.around(step)
        if around is None or not self.changes:
            return set()
        return {self.at(around[0]), self.at(around[1])}
