"""Trail: a ring of the last measurements in the order in which they were made. `backends.native` has it compiled."""

from __future__ import annotations

from collections import deque
from itertools import islice
from struct import pack


class Trail:
    """Notes measurements of rows.

    Args:
        capacity: the number of entries that are kept.

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

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a trail keeps at least one entry, not {capacity}")
        self.count = 0
        self.bad = 0
        self._ring: deque[bytes] = deque(maxlen=capacity)

    def note(self, row: int, minimum: float, maximum: float, nonfinite: float, abs_min: float) -> None:
        """Add a measurement.

        Args:
            row: the index of the row.
            minimum: the smallest element.
            maximum: the largest element.
            nonfinite: the number of elements that are not finite.
            abs_min: the smallest magnitude; NaN if it is not known.
        """
        self._ring.append(pack("5d", row, minimum, maximum, nonfinite, abs_min))
        self.count += 1
        self.bad += nonfinite > 0

    def entries(self, first: int) -> bytes:
        """The entries from a number on that are still kept, the earliest first, as packed `schema.TRAIL_ENTRY`."""
        oldest = self.count - len(self._ring)
        return b"".join(islice(self._ring, max(first - oldest, 0), None))


class Order:
    """The order of measurements whose numbers stay on a device.

    Attributes:
        rows: the rows in the order in which they were measured.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
