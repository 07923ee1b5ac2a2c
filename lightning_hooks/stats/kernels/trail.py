"""Trail: a ring of the last measurements in the order in which they were made. `backends.native` has it compiled."""

from __future__ import annotations

from array import array
from collections import deque
from itertools import islice
from math import nan
from struct import pack


class Trail:
    """Notes measurements of rows.

    Args:
        capacity: the number of entries that are kept.
        numbers: packed as int32, the row in the entries for each row of the table, -1 for a row that is not noted; without it
            all rows are noted, by their own numbers.

    Attributes:
        count: the number of entries since the beginning.
        bad: the number of those with elements that are not finite.

    Example:
        >>> trail = Trail(2)
        >>> for row in range(3):
        ...     trail.note(row, -1.0, 2.0, 0, 0.5)
        >>> trail.count, len(trail.entries(0)) // 40
        (3, 2)
    """

    def __init__(self, capacity: int, numbers: bytes | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"a trail keeps at least one entry, not {capacity}")
        self.count = 0
        self.bad = 0
        self._ring: deque[bytes] = deque(maxlen=capacity)
        self._numbers = None if numbers is None else array("i", numbers)

    def note(self, row: int, minimum: float = nan, maximum: float = nan, nonfinite: float = nan, abs_min: float = nan) -> None:
        """Add a measurement; without numbers if these stay on a device.

        Args:
            row: the index of the row.
            minimum: the smallest element.
            maximum: the largest element.
            nonfinite: the number of elements that are not finite.
            abs_min: the smallest magnitude; NaN if it is not known.
        """
        if self._numbers is not None:
            row = self._numbers[row] if 0 <= row < len(self._numbers) else -1
            if row < 0:
                return
        self._ring.append(pack("5d", row, minimum, maximum, nonfinite, abs_min))
        self.count += 1
        self.bad += nonfinite > 0

    def entries(self, first: int) -> bytes:
        """The entries from a number on that are still kept, the earliest first, as packed `schema.TRAIL_ENTRY`."""
        oldest = self.count - len(self._ring)
        return b"".join(islice(self._ring, max(first - oldest, 0), None))
