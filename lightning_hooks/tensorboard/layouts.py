"""Layouts of summaries: most events of a run differ only in the numbers at the same offsets."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.tensorboard.messages import read_values

FIXED_SIZE: Final = ("vector", "number")
"""Kinds of values whose size is the same in every event of a layout."""


class Layout(NamedTuple):
    """The leading values of fixed size of a summary.

    Args:
        offsets: of each tag the first byte and the size of its payload.
        end: the byte after the last of them.
        where: the bytes that are equal in every event of this layout, which are all but the payloads.
        fixed: what these bytes are.
    """

    offsets: dict[str, tuple[int, int]]
    end: int
    where: NDArray[np.intp]
    fixed: NDArray[np.uint8]

    def fits(self, content: bytes) -> bool:
        """Whether a summary begins with these values."""
        if len(content) < self.end:
            return False
        return np.array_equal(np.frombuffer(content, dtype=np.uint8)[self.where], self.fixed)


def beginning(content: bytes) -> bytes:
    """The part of a summary by which its layout is looked up: what is before the first number or vector, its tag included."""
    first = next(read_values(content), None)
    return b"" if first is None else content[: first.start]
