"""Repeats: what comes again in a sequence of batches, each of which is known by a number."""

from __future__ import annotations

from collections import deque
from typing import Final

MOST: Final = 4096
"""The number of first batches that are looked at."""
_RUNS: Final = 3
"""The runs of equal batches, one after the other, that must be of the same length."""
_HELD: Final = 8
"""The batches, one after the other, that must have come before at the same distance."""
_SAME: Final = 20
"""The batches, one after the other, that must be equal to be called the only one."""
_BEFORE: Final = 10
"""The batches that must have differed before one came again and again."""


class Repeats:
    """Looks for repetitions in a sequence.

    Attributes:
        count: of the batches.

    Example:
        >>> repeats = Repeats()
        >>> for number in (0, 0, 1, 1, 2, 2, 3, 3, 4):
        ...     repeats.add(number, step=0)
        >>> repeats.times, repeats.period
        (2, 0)
    """

    def __init__(self) -> None:
        self.count = 0
        self._last: dict[int, int] = {}  # the position at which a batch came last, by its number
        self._distance, self._held = 0, 0
        self._current: int | None = None
        self._length, self._begin = 0, 0  # of the run of equal batches under way, and the step at which it began
        self._lengths: deque[int] = deque(maxlen=_RUNS)  # of the last runs that are complete, without the first one
        self._runs, self._singles = 0, 0

    def add(self, number: int, step: int) -> None:
        """Add the next batch, which belongs to a step."""
        before = self._last.get(number)
        distance = 0 if before is None else self.count - before
        self._held = self._held + 1 if distance == self._distance else 1
        self._distance = distance
        if before is not None or len(self._last) < MOST:
            self._last[number] = self.count
        if number == self._current:
            self._length += 1
        else:
            self._end_run()
            self._current, self._length, self._begin = number, 1, step
        self.count += 1

    def _end_run(self) -> None:
        if self._length:
            self._runs += 1
            self._singles += self._length == 1
            # Looking may begin in the middle of the first run.
            if self._runs > 1:
                self._lengths.append(self._length)

    @property
    def times(self) -> int:
        """How often each batch comes in a row; 1 if it does not always come as often."""
        return self._lengths[0] if len(self._lengths) == _RUNS and len({*self._lengths}) == 1 else 1

    @property
    def period(self) -> int:
        """After how many batches, more than one, all of them have come again in the same order; 0 if they have not."""
        return self._distance if self._distance > 1 and self._held >= max(_HELD, self._distance) else 0

    @property
    def stuck_since(self) -> int | None:
        """The step since which one batch comes again and again, after others that each came once; None if none does."""
        is_stuck = self._length >= _SAME and self._singles >= _BEFORE and self._singles == self._runs
        return self._begin if is_stuck else None

    @property
    def are_all_the_same(self) -> bool:
        """Whether all batches are equal, and there are several."""
        return self._runs == 0 and self._length >= _SAME
