"""The index of one event file: it says at which offsets the values of each tag lie, without decoding the values.

Most events of a run differ only in their numbers. Events that do share a layout: the tags, and the offsets of the numbers in
the summary. For each event the index keeps its step, its time, its offset in the file and the number of its layout, so the
size of the index does not depend on the number of rows. The index is extended as the file grows.
"""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import listed, printable
from lightning_hooks.tensorboard.layouts import Layouts, split_values
from lightning_hooks.tensorboard.marks import Marks
from lightning_hooks.tensorboard.messages import (
    FOOT,
    HEAD,
    LONGEST,
    DamagedError,
    Kind,
    Value,
    checksum,
    is_head,
    length_in,
    read_event,
    read_records,
    read_values,
)

Offsets = NDArray[np.int64]

_PROBLEMS: Final = 20
"""The most problems of one file that are kept for the page."""
_STEPS: Final = 1 << 62
"""Steps of this magnitude or more are rejected as damaged: the difference of two steps must fit into 64 bits."""


class EventFile:
    """The index of one event file.

    If a tag has values of several kinds, only the values of the kind that came first are indexed.

    The file is read with `read`, never mapped into memory: if a mapped file is truncated, the next access kills the process.

    Attributes:
        tags: tag to the kind of its values and the name of its plugin, in the order of the file.
        readings: how often the file was read from its first byte.
        problems: messages about the parts of the file that could not be read.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.readings = 0
        self._clear()
        self.refresh()

    def _clear(self) -> None:
        self.readings += 1
        self.tags: dict[str, tuple[Kind, str]] = {}
        self.problems: list[str] = []
        self._mixed: set[str] = set()  # tags with values of several kinds
        self._size, self._modified = 0, -1
        self._end = 0  # the byte after the last whole record
        self._marks = Marks()
        self._is_cut = False  # whether the record at `_end` has a damaged head, so that nothing after it can be read
        self._steps, self._times = array("q"), array("d")
        self._starts, self._ends = array("q"), array("q")  # offsets of the summaries in the file
        self._layout_of = array("i")
        self._layouts = Layouts()
        # By tag: the events that hold a value of the tag after the leading values of fixed size, which the layout describes.
        self._tail: dict[str, array[int]] = {}

    def refresh(self) -> bool:
        """Index the events that were appended since the last call; return whether the index changed.

        A file that was replaced is read from its first byte.
        """
        now = os.stat(self.path)
        if (now.st_size, now.st_mtime_ns) == (self._size, self._modified):
            return False
        damaged: list[int] = []  # offsets of the events that were skipped
        with open(self.path, "rb") as file:
            now = os.fstat(file.fileno())
            size = now.st_size
            was_replaced = size < self._size or not self._marks.are_in(file)
            if was_replaced:
                self._clear()
            mixed_before = len(self._mixed)
            before = self._end
            file.seek(self._end)
            for data, stated in read_records(file, size):
                # If the last record is damaged, leave it for the next refresh: another process may still be writing it.
                if self._end + HEAD + len(data) + FOOT >= size and checksum(data) != stated:
                    break
                if not self._add_event(data, self._end + HEAD, stated):
                    damaged.append(self._end)
                self._end += HEAD + len(data) + FOOT
            file.seek(self._end)
            head = file.read(HEAD)
            if self._end > before:
                self._marks.keep(file, self._end)
        self._warn_of_damage(damaged, head)
        if len(self._mixed) > mixed_before:
            tags = listed(map(repr, sorted(self._mixed)), 3)
            self._tell(f"only the values of the kind that came first are read of {tags}, which have several kinds")
        self._size, self._modified = size, now.st_mtime_ns
        return was_replaced or self._end > before

    def _warn_of_damage(self, damaged: Sequence[int], head: bytes) -> None:
        """Warn of the events that were skipped, and once of a damaged `head`, after which the file cannot be read.

        Args:
            damaged: offsets of the events that were skipped.
            head: the bytes after the last record that was read; fewer than a whole head, or zeros, if the file ends there.
        """
        if damaged:
            self._tell(f"damaged events are not read ({len(damaged)}; the first begins at byte {damaged[0]})")
        if len(head) < HEAD or not any(head) or self._is_cut:
            return
        if not is_head(head):
            self._is_cut = True
            self._tell(f"what follows byte {self._end} is damaged and is not read")
        elif length_in(head) > LONGEST:
            self._is_cut = True
            self._tell(
                f"what follows byte {self._end} is not read: a record there is said to have {length_in(head)} bytes, and none "
                f"has more than {LONGEST}"
            )

    def _tell(self, problem: str) -> None:
        """Warn of a problem of the file, and keep the message for the page."""
        if len(self.problems) < _PROBLEMS:
            self.problems.append(problem)
        warnings.warn(printable(f"{self.path}: {problem}"), stacklevel=4)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def steps(self) -> Offsets:
        """The step of each event, int64 [events]."""
        return np.array(self._steps, dtype=np.int64)

    @property
    def wall_times(self) -> NDArray[np.float64]:
        """The time of each event in seconds since 1970."""
        return np.array(self._times, dtype=np.float64)

    def offsets(self, tag: str) -> tuple[Offsets, Offsets, Offsets]:
        """The positions of the values of a tag.

        Returns:
            The events that hold the tag, ascending, int64 [values]; the offset of each payload in the file; its size in bytes.
        """
        layout_of = np.array(self._layout_of, dtype=np.int64)
        # The offset of the payload in a summary of each layout; -1 if the layout does not have the tag.
        first = np.full(len(self._layouts), -1, dtype=np.int64)
        sizes = np.zeros(len(self._layouts), dtype=np.int64)
        for i, layout in enumerate(self._layouts):
            if tag in layout.offsets:
                first[i], sizes[i] = layout.offsets[tag]
        events = np.flatnonzero(first[layout_of] >= 0)
        starts = np.array(self._starts, dtype=np.int64)[events] + first[layout_of[events]]
        size = sizes[layout_of[events]]
        if tag in self._tail:
            tail = [
                (event, self._starts[event] + value.start, value.size)
                for event in self._tail[tag]
                for value, _ in self._tail_of(event)
                if value.tag == tag
            ]
            more = np.array(tail, dtype=np.int64).reshape(-1, 3).T
            events, starts, size = (np.concatenate(pair) for pair in zip((events, starts, size), more, strict=True))
            order = np.argsort(events, kind="stable")
            events, starts, size = events[order], starts[order], size[order]
        return events, starts, size

    def floats(self, starts: Offsets, size: int) -> NDArray[np.float32]:
        """Vectors or numbers of the same size, float32 [starts, size / 4]; NaN if the file has been truncated before them.

        Args:
            starts: offset of each payload in the file, int64 [starts].
            size: of one payload in bytes.
        """
        out = np.empty((len(starts), size // 4), dtype="<f4")
        with open(self.path, "rb", buffering=0) as file:
            for row, start in zip(out, starts.tolist(), strict=True):
                file.seek(start)
                # Use NaN if the file was truncated after it was indexed.
                if file.readinto(row) < size:  # type: ignore[arg-type]
                    row.fill(np.nan)
        return out

    def numbers(self) -> Iterator[tuple[str, Offsets, NDArray[np.float32]]]:
        """Every scalar tag with its events and their values, except the values in `rest`; once for each layout that has it."""
        layout_of = np.array(self._layout_of, dtype=np.int64)
        for i, layout in enumerate(self._layouts):
            offsets = {tag: start for tag, (start, _) in layout.offsets.items() if self.tags[tag][0] == "number"}
            events = np.flatnonzero(layout_of == i)
            if not offsets or not len(events):
                continue
            bytes_of = np.array([*offsets.values()], dtype=np.intp)[:, None] + np.arange(4)
            values = np.empty((len(events), len(offsets)), dtype="<f4")
            with open(self.path, "rb", buffering=0) as file:
                for row, event in zip(values, events.tolist(), strict=True):
                    file.seek(self._starts[event])
                    content = np.frombuffer(file.read(layout.end), dtype=np.uint8)
                    # Use NaN if the file was truncated after it was indexed.
                    row[:] = content[bytes_of].view("<f4")[:, 0] if len(content) == layout.end else np.nan
            yield from ((tag, events, values[:, column]) for column, tag in enumerate(offsets))

    def rest(self) -> Iterator[tuple[int, Value, bytes]]:
        """Every value that belongs to no layout, with its event and its payload: histograms, texts, lists of rows.

        In each summary these are the first value of variable size and all values after it.
        """
        for event in sorted({event for events in self._tail.values() for event in events}):
            for value, summary in self._tail_of(event):
                yield event, value, summary[value.start : value.start + value.size]

    def events_of(self, tag: str) -> list[int]:
        """The events that hold a tag of `rest`, such as a histogram, ascending."""
        return [*dict.fromkeys(self._tail.get(tag, ()))]

    def payloads(self, event: int, tags: Container[str]) -> dict[str, bytes]:
        """The payloads of these tags of `rest` in one event, which is parsed once for all of them."""
        found = ((value, summary) for value, summary in self._tail_of(event) if value.tag in tags)
        return {value.tag: summary[value.start : value.start + value.size] for value, summary in found}

    def payload(self, start: int, size: int) -> bytes:
        """The bytes of a payload."""
        with open(self.path, "rb") as file:
            file.seek(start)
            return file.read(size)

    def _add_event(self, data: bytes, offset: int, stated: int) -> bool:
        """Index an event; return False if it is damaged.

        The checksum is computed only if no earlier event had this layout or one of these tags: in Python the checksum takes
        far longer than the rest. A damaged number in an event of a known layout is therefore not detected.

        Args:
            data: the data of the record.
            offset: of the data in the file.
            stated: the checksum that the record states.
        """
        try:
            event = read_event(data)
            if event is None:
                return True
            step, wall_time, start, end = event
            content = data[start:end]
            layout = self._layouts.known(content)
            values = [*read_values(content, 0 if layout is None else self._layouts[layout].end)]
        except DamagedError:
            return False
        if not -_STEPS < step < _STEPS:
            return False
        tags = {value.tag for value in values}
        is_new = layout is None or not self.tags.keys() >= tags
        if is_new and checksum(data) != stated:
            return False
        if layout is None:
            leading, values = split_values(values)
            for value in leading:
                self._register_tag(value)
            layout = self._layouts.add(content, leading, self.tags)
            tags = {value.tag for value in values}
        number = len(self._steps)
        self._steps.append(step)
        self._times.append(wall_time)
        self._starts.append(offset + start)
        self._ends.append(offset + end)
        self._layout_of.append(layout)
        for value in values:
            self._register_tag(value)
        for tag in tags:
            self._tail.setdefault(tag, array("q")).append(number)
        return True

    def _register_tag(self, value: Value) -> None:
        kind, plugin = self.tags.setdefault(value.tag, (value.kind, value.plugin))
        if value.kind != kind:
            self._mixed.add(value.tag)
        elif value.plugin and not plugin:
            self.tags[value.tag] = kind, value.plugin

    def _tail_of(self, event: int) -> Iterator[tuple[Value, bytes]]:
        """The values of an event that do not belong to its layout, each with the bytes of the whole summary."""
        start = self._starts[event]
        summary = self.payload(start, self._ends[event] - start)
        try:
            for value in read_values(summary, self._layouts[self._layout_of[event]].end):
                if value.kind == self.tags.get(value.tag, ("",))[0]:
                    yield value, summary
        # The file was replaced after it was indexed.
        except DamagedError:
            return
