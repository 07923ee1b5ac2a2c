"""Timeline: a fact of a good run by step, which hardly ever changes; and what several good runs say of a step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from lightning_hooks.health.reference.observed import Observed

T = TypeVar("T", bound=Hashable)


class Timeline(Generic[T]):
    """A value by step.

    Args:
        changes: (step, value) at each step at which the value changed, ascending.

    Example:
        >>> timeline = Timeline([(0, "a"), (10, "b")])
        >>> timeline.at(9), timeline.at(10), sorted(timeline.values(Observed.of([0, 5, 10]), 7))
        ('a', 'b', ['a', 'b'])
    """

    def __init__(self, changes: Iterable[tuple[int, T]] = ()) -> None:
        self.changes = list(changes)

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

    def to_json(self) -> list[list[Any]]:
        """The changes as plain values."""
        return [[step, list(value) if isinstance(value, tuple) else value] for step, value in self.changes]


def names_timeline(saved: Iterable[Sequence[Any]]) -> Timeline[tuple[str, ...]]:
    """A timeline of sets of names from `Timeline.to_json`; raises TypeError or ValueError if it is damaged."""
    return Timeline([(int(step), tuple(map(str, names))) for step, names in saved])
