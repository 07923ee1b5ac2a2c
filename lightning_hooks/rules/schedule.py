"""Schedules: the steps at which a rule or a monitor acts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.rules.fields import as_count


@dataclass(frozen=True)
class EveryN:
    """A schedule of steps, counted as Lightning counts: a step is due if (step + 1) % every == 0.

    Args:
        every: the interval in steps; default 1, each step.
        first: the first step that can be due; default 0.
        last: the last step that can be due; default None, no last step.
        steps: an explicit list of steps, which replaces the interval.

    Example:
        >>> EveryN(every=10).due(9), EveryN(every=10).due(10), EveryN(steps=(3, 5)).due(5)
        (True, False, True)
    """

    every: int = 1
    first: int = 0
    last: int | None = None
    steps: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        # Compute the hash and the sorted steps once, because every step uses both and a list of steps may be long. Hash
        # integers only, because the hash of None can differ between processes.
        last = -1 if self.last is None else self.last
        object.__setattr__(self, "_hash", hash((self.every, self.first, last, self.steps or ())))
        if self.steps is not None:
            object.__setattr__(self, "_ordered", sorted(set(self.steps)))

    def __hash__(self) -> int:
        cached: int = self.__dict__["_hash"]
        return cached

    def due(self, step: int) -> bool:
        """Whether a step is in the schedule."""
        if self.steps is not None:
            return self.next(step) == step
        return (step + 1) % self.every == 0 and step >= self.first and (self.last is None or step <= self.last)

    def next(self, step: int) -> int | None:
        """The first due step that is at least `step`; None if there is none.

        Example:
            >>> EveryN(every=10).next(10), EveryN(every=10, last=15).next(10), EveryN(steps=(3, 5)).next(4)
            (19, None, 5)
        """
        if self.steps is not None:
            ordered = self.__dict__["_ordered"]
            index = bisect_left(ordered, step)
            return ordered[index] if index < len(ordered) else None
        step = max(step, self.first)
        step += -(step + 1) % self.every
        return step if self.last is None or step <= self.last else None

    @property
    def end(self) -> int | None:
        """The last step that can be due; None if there is no last one."""
        return self.last if self.steps is None else self.__dict__["_ordered"][-1]

    def at_least(self, interval: int) -> EveryN:
        """The same schedule with the least multiple of its interval that is at least `interval`; a list of steps stays.

        Example:
            >>> EveryN(every=4).at_least(10), EveryN(steps=(1, 2)).at_least(10).steps
            (EveryN(every=12, first=0, last=None, steps=None), (1, 2))
        """
        return self if self.steps is not None else replace(self, every=-(-interval // self.every) * self.every)

    def spaced(self, interval: int) -> EveryN:
        """As `at_least`; of a list of steps, those that come `interval` or more after the one before that is kept.

        Example:
            >>> EveryN(every=4).spaced(10).every, EveryN(steps=(1, 2, 9, 11, 30)).spaced(10).steps
            (12, (1, 11, 30))
        """
        if self.steps is None:
            return self.at_least(interval)
        kept: list[int] = []
        for step in self.__dict__["_ordered"]:
            if not kept or step - kept[-1] >= interval:
                kept.append(step)
        return replace(self, steps=tuple(kept))

    def widened(self, factor: int) -> EveryN:
        """The same schedule with an interval `factor` (at least 1) times as long; a list keeps each `factor`-th step.

        Example:
            >>> EveryN(every=10).widened(4), EveryN(steps=(1, 2, 3, 5)).widened(2).steps
            (EveryN(every=40, first=0, last=None, steps=None), (2, 5))
        """
        if self.steps is not None:
            return replace(self, steps=tuple(self.__dict__["_ordered"][factor - 1 :: factor]) if factor > 1 else self.steps)
        return replace(self, every=self.every * factor)


def every_n(value: Any, where: str) -> EveryN:
    """Read a schedule: a number, a list of steps, or a mapping of `first`, `every`, `last`.

    Raises:
        RuleError: the value is not a schedule; the message begins with `where`.

    Example:
        >>> every_n({"first": 10, "every": 5}, "every_n_steps")
        EveryN(every=5, first=10, last=None, steps=None)
    """
    expected = "an integer of at least 1, a list of steps, or a mapping with first, every, last"
    if isinstance(value, EveryN):
        return value
    if isinstance(value, Mapping):
        unknown = [key for key in value if key not in ("first", "every", "last")]
        if unknown:
            raise RuleError(f"{where}: unknown key {unknown[0]!r}; give {expected}")
        numbers = dict(value)
        schedule = EveryN(
            every=as_count(f"{where}.every", numbers.get("every", 1), 1),
            first=as_count(f"{where}.first", numbers.get("first", 0)),
            last=None if numbers.get("last") is None else as_count(f"{where}.last", numbers["last"]),
        )
        if schedule.last is not None and schedule.last < schedule.first:
            raise RuleError(f"{where}: last={schedule.last} is before first={schedule.first}")
        return schedule
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if not value:
            raise RuleError(f"{where} is an empty list; give {expected}")
        return EveryN(steps=tuple(as_count(f"{where}[{i}]", step) for i, step in enumerate(value)))
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RuleError(f"{where} must be {expected}, got {shown(value)}")
    return EveryN(every=as_count(where, value, 1))
