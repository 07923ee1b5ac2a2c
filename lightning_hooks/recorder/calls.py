"""The trail of a record: the last calls with the names of their rows, and the first call that gave a bad number."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.recorder.record import TrailEntry
from lightning_hooks.stats.schema import TRAIL_ENTRY


class Mark(NamedTuple):
    """Where a batch begins in a trail.

    Args:
        first: the number of the first entry of the batch.
        step: the step of the batch.
        micro_batch: its number in the step, from 0.
    """

    first: int
    step: int
    micro_batch: int


class Calls:
    """The entries of a trail that are still kept, in the order of the calls.

    Args:
        entries: what the trail keeps, as packed `TRAIL_ENTRY`.
        end: the number of the entry after the last one.
        marks: the batches, in order.
        rows: the name and the tensor of each row.
        joined: rows whose only entry has the numbers of several calls.

    Example:
        >>> packed = np.array([(0, -1, 2, 0, 0.5), (1, np.nan, np.nan, 3, np.nan)], TRAIL_ENTRY).tobytes()
        >>> calls = Calls(packed, 2, [Mark(0, 7, 0)], [("fc", "output"), ("log", "output")])
        >>> calls.first_bad(7)
        1
        >>> calls.named()[1].name, calls.named()[1].step
        ('log', 7)
    """

    def __init__(
        self,
        entries: bytes,
        end: int,
        marks: Sequence[Mark],
        rows: Sequence[tuple[str, str]],
        joined: Collection[int] = (),
    ) -> None:
        self.entries: NDArray[np.void] = np.frombuffer(entries, TRAIL_ENTRY)
        self.first = end - len(self.entries)
        self._marks = list(marks)
        self._rows = rows
        self._joined = joined

    def is_joined(self, position: int) -> bool:
        """Whether an entry has the numbers of several calls."""
        return int(self.entries["row"][position]) in self._joined

    def before(self, position: int, tensor: str) -> TrailEntry | None:
        """The last entry of a tensor before a position, in the same batch; None if there is none."""
        mark = self._mark_of(position)
        for earlier in range(position - 1, -1, -1):
            if self._mark_of(earlier) is not mark:
                return None
            if self._rows[int(self.entries["row"][earlier])][1] == tensor:
                return self._named(earlier)
        return None

    def first_bad(self, step: int, usual: Collection[int] = (), tensors: Collection[str] = ()) -> int | None:
        """The position of the first entry of a step with numbers that are not finite; None if there is none.

        Args:
            step: the step.
            usual: rows whose infinities are usual, such as masks.
            tensors: only entries of these tensors; all by default.
        """
        for position in np.flatnonzero(self.entries["nonfinite"] > 0):
            row = int(self.entries["row"][position])
            if row in usual or (tensors and self._rows[row][1] not in tensors):
                continue
            mark = self._mark_of(int(position))
            if mark is not None and mark.step == step:
                return int(position)
        return None

    def named(self, begin: int = 0, end: int | None = None) -> tuple[TrailEntry, ...]:
        """The entries between two positions."""
        stop = len(self.entries) if end is None else min(end, len(self.entries))
        return tuple(self._named(position) for position in range(max(begin, 0), stop))

    def _named(self, position: int) -> TrailEntry:
        entry, mark = self.entries[position], self._mark_of(position) or Mark(0, -1, 0)
        row = int(entry["row"])
        begin = max(mark.first - self.first, 0)
        call = int((self.entries["row"][begin:position] == row).sum())
        name, tensor = self._rows[row]
        ends, nonfinite = (float(entry["minimum"]), float(entry["maximum"])), int(entry["nonfinite"])
        low, high, least = (end if math.isfinite(end) else None for end in (*ends, float(entry["abs_min"])))
        kind = _kind(*ends) if nonfinite else ""
        return TrailEntry(name, tensor, mark.step, mark.micro_batch, call, low, high, nonfinite, kind, least)

    def _mark_of(self, position: int) -> Mark | None:
        number = self.first + position
        return next((mark for mark in reversed(self._marks) if mark.first <= number), None)


def _kind(minimum: float, maximum: float) -> str:
    """What the elements that are not finite are, from the extremes of a tensor: both are NaN if one element is."""
    if math.isnan(minimum) or math.isnan(maximum):
        return "nan"
    signs = "-" * (minimum == -math.inf) + "+" * (maximum == math.inf)
    return "inf" if signs == "-+" else f"{signs}inf"
