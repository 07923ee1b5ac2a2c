"""The layout of a summary: the bytes that are equal in all events that differ only in their numbers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.tensorboard.messages import Kind, Value, read_values

FIXED_SIZE: Final = ("vector", "number")
"""The kinds of values that have the same size in every event of a layout."""
_COMPARED: Final = 256
"""The most layouts with the same beginning with which a summary is compared."""


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


class Layouts(list[Layout]):
    """The layouts of one event file, in the order in which they were added; a layout is named by its number."""

    def __init__(self) -> None:
        super().__init__()
        self._by_beginning: dict[bytes, list[int]] = {}
        self._latest: int | None = None  # the layout of the summary that was looked up last

    def known(self, content: bytes) -> int | None:
        """The number of the layout of a summary; None if it is not among the latest layouts with the same beginning."""
        # Most events have the layout of the event before. Try it first, because reading the beginning of a summary takes long.
        if self._latest is None or not self._has(content, self._latest):
            others = self._by_beginning.get(_beginning(content), [])[-_COMPARED:]
            self._latest = next((i for i in others if self._has(content, i)), None)
        return self._latest

    def _has(self, content: bytes, number: int) -> bool:
        if not self[number].fits(content):
            return False
        # If another value of fixed size follows, the summary has a longer layout that begins like this layout.
        following = next(read_values(content, self[number].end), None)
        return following is None or following.kind not in FIXED_SIZE

    def add(self, content: bytes, leading: Sequence[Value], kinds: Mapping[str, tuple[Kind, str]]) -> int:
        """Add the layout of a summary; return its number.

        Args:
            content: the summary.
            leading: its values of fixed size up to the first one of variable size.
            kinds: the kind of each tag: a value of another kind is not part of the layout.
        """
        end = leading[-1].end if leading else 0
        is_fixed = np.ones(end, dtype=np.bool_)
        for value in leading:
            is_fixed[value.start : value.start + value.size] = False
        fixed_at = np.flatnonzero(is_fixed)
        offsets = {value.tag: (value.start, value.size) for value in leading if value.kind == kinds[value.tag][0]}
        self.append(Layout(offsets, end, fixed_at, np.frombuffer(content, dtype=np.uint8)[fixed_at]))
        self._by_beginning.setdefault(_beginning(content), []).append(len(self) - 1)
        return len(self) - 1


def split_values(values: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """The leading values of fixed size, and the first value of variable size with all values after it."""
    rest = list(itertools.dropwhile(lambda value: value.kind in FIXED_SIZE, values))
    return list(values[: len(values) - len(rest)]), rest


def _beginning(content: bytes) -> bytes:
    """The key by which the layout of a summary is looked up: its bytes before the first payload, including the first tag."""
    first = next(read_values(content), None)
    return b"" if first is None else content[: first.start]
