"""Observed: the steps at which a run was watched, as ranges with a stride, which take little room in a file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from lightning_hooks.codec import bare


@bare
@dataclass
class Observed:
    """Steps of a run, ascending.

    Args:
        ranges: [first, last, stride] of each range, ascending; ranges do not overlap.

    Example:
        >>> steps = Observed.of([0, 1, 2, 7, 12, 17])
        >>> steps.ranges, steps.around(7), steps.around(9), steps.around(18)
        ([(0, 2, 1), (7, 17, 5)], (7, 7), (7, 12), None)
    """

    ranges: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._firsts = [first for first, _, _ in self.ranges]
        before = -1
        for first, last, stride in self.ranges:
            if first <= before or last < first or stride < 1 or (last - first) % stride:
                raise ValueError(f"ranges of steps must ascend, each with its last step behind its first: {self.ranges!r}")
            before = last

    @classmethod
    def of(cls, steps: Iterable[int]) -> Observed:
        """The ranges of ascending steps."""
        ranges: list[list[int]] = []
        for step in steps:
            last = ranges[-1] if ranges else None
            if last is not None and (step - last[1] == last[2] or last[0] == last[1]):
                last[1], last[2] = step, step - last[1]
            else:
                ranges.append([step, step, 1])
        return cls([(first, last, stride) for first, last, stride in _split(ranges)])

    @property
    def first(self) -> int:
        """The first step; -1 if there is none."""
        return self.ranges[0][0] if self.ranges else -1

    @property
    def last(self) -> int:
        """The last step; -1 if there is none."""
        return self.ranges[-1][1] if self.ranges else -1

    def around(self, step: int) -> tuple[int, int] | None:
        """The last step that was watched at or before a step, and the first at or behind it; None outside of the run."""
        if not self.first <= step <= self.last:
            return None
        position = bisect_right(self._firsts, step) - 1
        first, last, stride = self.ranges[position]
        if step > last:
            return last, self.ranges[position + 1][0]
        before = first + (step - first) // stride * stride
        return before, before if before == step else before + stride


def _split(ranges: list[list[int]]) -> list[list[int]]:
    """Ranges in which a range of two steps gives its last step to the next range if that has the same distance to it."""
    result: list[list[int]] = []
    for first, last, stride in ranges:
        if result and result[-1][1] == result[-1][0] + result[-1][2] and first - result[-1][1] == stride and last > first:
            taken = result.pop()
            result.append([taken[0], taken[0], 1])
            result.append([taken[1], last, stride])
        else:
            result.append([first, last, stride])
    return result
