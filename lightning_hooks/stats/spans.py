"""The parts of a flat array, laid out one after the other."""

from __future__ import annotations


class Spans:
    """Lays out the parts of a flat array, in the order in which they are added.

    Attributes:
        size: the number of elements of all parts so far.

    Example:
        >>> spans = Spans()
        >>> spans.add(3), spans.add(2), spans.since(1), spans.size
        (slice(0, 3, None), slice(3, 5, None), slice(1, 5, None), 5)
    """

    def __init__(self, start: int = 0) -> None:
        self.size = start

    def add(self, length: int) -> slice:
        """The positions of one more part, with this number of elements."""
        start = self.size
        self.size += length
        return self.since(start)

    def since(self, start: int) -> slice:
        """The positions of all elements from `start` on."""
        return slice(start, self.size)
