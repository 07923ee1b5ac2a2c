"""The layout of a summary: the bytes that are equal in all events that differ only in their numbers."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.tensorboard.messages import read_values

FIXED_SIZE: Final = ("vector", "number")
"""The kinds of values that have the same size in every event of a layout."""


class Layout(NamedTuple):
    """The leading values of a summary up to the first one of variable size.

    Args:
        offsets: tag to the offset of its payload in the summary, and the size of the payload in bytes.
        end: the offset after the last of these values.
        fixed_at: the offsets of all bytes outside the payloads, which are equal in every event of the layout.
        fixed: the bytes at these offsets.
    """

    offsets: dict[str, tuple[int, int]]
    end: int
    fixed_at: NDArray[np.intp]
    fixed: NDArray[np.uint8]

    def fits(self, content: bytes) -> bool:
        """Whether a summary begins with values of this layout."""
        if len(content) < self.end:
            return False
        return np.array_equal(np.frombuffer(content, dtype=np.uint8)[self.fixed_at], self.fixed)


def beginning(content: bytes) -> bytes:
    """The key by which the layout of a summary is looked up: its bytes before the first payload, including the first tag."""
    first = next(read_values(content), None)
    return b"" if first is None else content[: first.start]
