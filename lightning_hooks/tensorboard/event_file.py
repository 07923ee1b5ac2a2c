"""The index of one event file: where each tag has its values, without decoding them.

Most events of a run differ in their numbers only. Such events share a layout: the tags and the offsets of the numbers in a
summary. The index of an event is then its step, its time, its offset in the file and its layout. It is extended as the file
grows, and its size does not depend on the number of rows.
"""

from __future__ import annotations

import itertools
import os
import warnings
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import listed, printable
from lightning_hooks.tensorboard.layouts import FIXED_SIZE, Layout, beginning
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

_PROBLEMS: Final = 20  # that are kept of a file
_STEPS: Final = 1 << 62  # the magnitude of no step: differences of steps are then numbers of 64 bits
_MARK: Final = 64  # bytes
_ALIKE: Final = 256  # layouts of one beginning with which an event is compared


class EventFile:
    """One event file.

    Of a tag only the values of one kind are read: those of the kind of the first.

    The file is read, never mapped into memory: a mapped file that somebody truncates ends the process.

    Attributes:
        tags: of every tag the kind of its values and the name of its plugin, in the order of the file.
        readings: how often it was read from its beginning.
        problems: what of it could not be read, in words.

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
        self._end = 0  # of the last whole record
        self._marks: list[tuple[int, bytes]] = []
        self._is_cut = False  # known to be damaged there
        self._steps, self._times = array("q"), array("d")
        self._starts, self._ends = array("q"), array("q")  # of summaries, in the file
        self._layout_of = array("i")
        self._layouts: list[Layout] = []
        self._by_beginning: dict[bytes, list[int]] = {}
        self._tail: dict[str, array[int]] = {}  # events that have this tag after the part of fixed size

    def refresh(self) -> bool:
        """Read what was appended since; whether anything changed. A file that was replaced is read from its beginning."""
        now = os.stat(self.path)
        if (now.st_size, now.st_mtime_ns) == (self._size, self._modified):
            return False
        damaged: list[int] = []  # where events that were skipped begin
        with open(self.path, "rb") as file:
            now = os.fstat(file.fileno())
            size = now.st_size
            is_other = size < self._size or not self._goes_on(file)
            if is_other:
                self._clear()
            mixed = len(self._mixed)
            before = self._end
            file.seek(self._end)
            for data, stated in read_records(file, size):
                # The end is damaged where a process was killed or a disk was full; it may still be written.
                if self._end + HEAD + len(data) + FOOT >= size and checksum(data) != stated:
                    break
                if not self._add_event(data, self._end + HEAD, stated):
                    damaged.append(self._end)
                self._end += HEAD + len(data) + FOOT
            file.seek(self._end)
            head = file.read(HEAD)
            if self._end > before:
                self._mark(file)
        self._warn_of_damage(damaged, head)
        if len(self._mixed) > mixed:
            tags = listed(map(repr, sorted(self._mixed)), 3)
            self._tell(f"only the values of the kind that came first are read of {tags}, which have several kinds")
        self._size, self._modified = size, now.st_mtime_ns
        return is_other or self._end > before

    def _mark(self, file: BinaryIO) -> None:
        """Keep the first bytes and the last of what has been read: where they differ later, the file is another one."""
        self._marks = []
        for at in (0, max(self._end - _MARK, 0)):
            file.seek(at)
            self._marks.append((at, file.read(min(_MARK, self._end))))

    def _goes_on(self, file: BinaryIO) -> bool:
        """Whether what has been read of the file is still there."""
        for at, mark in self._marks:
            file.seek(at)
            if file.read(len(mark)) != mark:
                return False
        return True

    def _warn_of_damage(self, damaged: Sequence[int], head: bytes) -> None:
        """Tell of events that were skipped, and once of a `head` in which the file cannot be read on."""
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
        """Warn of something that is not read, and keep it for the page."""
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
        """Where the values of a tag are.

        Returns:
            The events that have it in ascending order, and the first byte and the size of each payload.
        """
        layout_of = np.array(self._layout_of, dtype=np.int64)
        first = np.full(len(self._layouts), -1, dtype=np.int64)
        sizes = np.zeros(len(self._layouts), dtype=np.int64)
        for i, layout in enumerate(self._layouts):
            if tag in layout.offsets:
                first[i], sizes[i] = layout.offsets[tag]
        events = np.flatnonzero(first[layout_of] >= 0)
        starts = np.array(self._starts, dtype=np.int64)[events] + first[layout_of[events]]
        size = sizes[layout_of[events]]
        if tag in self._tail:
            found = [
                (event, self._starts[event] + value.start, value.size)
                for event in self._tail[tag]
                for value, _ in self._tail_of(event)
                if value.tag == tag
            ]
            more = np.array(found, dtype=np.int64).reshape(-1, 3).T
            events, starts, size = (np.concatenate(pair) for pair in zip((events, starts, size), more, strict=True))
            order = np.argsort(events, kind="stable")
            events, starts, size = events[order], starts[order], size[order]
        return events, starts, size

    def floats(self, starts: Offsets, size: int) -> NDArray[np.float32]:
        """Vectors or numbers of the same size, float32 [starts, size / 4]; NaN where the file has become too short for them."""
        out = np.empty((len(starts), size // 4), dtype="<f4")
        with open(self.path, "rb", buffering=0) as file:
            for row, start in zip(out, starts.tolist(), strict=True):
                file.seek(start)
                if file.readinto(row) < size:  # type: ignore[arg-type]  # an array is a buffer
                    row.fill(np.nan)
        return out

    def numbers(self) -> Iterator[tuple[str, Offsets, NDArray[np.float32]]]:
        """Every tag of numbers with its events and their values, except those in `rest`; a tag may come several times."""
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
                    # The file may have become shorter since it was indexed.
                    row[:] = content[bytes_of].view("<f4")[:, 0] if len(content) == layout.end else np.nan
            yield from ((tag, events, values[:, column]) for column, tag in enumerate(offsets))

    def rest(self) -> Iterator[tuple[int, Value, bytes]]:
        """Every value from the first of variable size on, with its event and its payload: histograms, texts, lists of rows."""
        for event in sorted({event for events in self._tail.values() for event in events}):
            for value, summary in self._tail_of(event):
                yield event, value, summary[value.start : value.start + value.size]

    def payload(self, start: int, size: int) -> bytes:
        """The bytes of a payload."""
        with open(self.path, "rb") as file:
            file.seek(start)
            return file.read(size)

    def _add_event(self, data: bytes, offset: int, stated: int) -> bool:
        """Add an event; whether it is whole.

        Its checksum is computed only where it has a layout or a tag that no event before it had: in Python that takes far
        longer than the rest. So a number that was damaged is read as it is.
        """
        try:
            found = read_event(data)
            if found is None:
                return True
            step, wall_time, start, end = found
            content = data[start:end]
            layout = self._known_layout(content)
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
            layout, values = self._new_layout(content, values)
            tags = {value.tag for value in values}
        number = len(self._steps)
        self._steps.append(step)
        self._times.append(wall_time)
        self._starts.append(offset + start)
        self._ends.append(offset + end)
        self._layout_of.append(layout)
        for value in values:
            self._note(value)
        for tag in tags:
            self._tail.setdefault(tag, array("q")).append(number)
        return True

    def _known_layout(self, content: bytes) -> int | None:
        for i in self._by_beginning.get(beginning(content), [])[-_ALIKE:]:
            layout = self._layouts[i]
            if layout.fits(content):
                following = next(read_values(content, layout.end), None)
                if following is None or following.kind not in FIXED_SIZE:
                    return i
        return None

    def _new_layout(self, content: bytes, values: list[Value]) -> tuple[int, list[Value]]:
        """Add the layout of a summary with these values; its number, and the values that do not belong to it."""
        rest = list(itertools.dropwhile(lambda value: value.kind in FIXED_SIZE, values))
        leading = values[: len(values) - len(rest)]
        end = leading[-1].end if leading else 0
        is_fixed = np.ones(end, dtype=np.bool_)
        for value in leading:
            self._note(value)
            is_fixed[value.start : value.start + value.size] = False
        where = np.flatnonzero(is_fixed)
        offsets = {value.tag: (value.start, value.size) for value in leading if value.kind == self.tags[value.tag][0]}
        self._layouts.append(Layout(offsets, end, where, np.frombuffer(content, dtype=np.uint8)[where]))
        self._by_beginning.setdefault(beginning(content), []).append(len(self._layouts) - 1)
        return len(self._layouts) - 1, rest

    def _note(self, value: Value) -> None:
        kind, plugin = self.tags.setdefault(value.tag, (value.kind, value.plugin))
        if value.kind != kind:
            self._mixed.add(value.tag)
        elif value.plugin and not plugin:
            self.tags[value.tag] = kind, value.plugin

    def _tail_of(self, event: int) -> Iterator[tuple[Value, bytes]]:
        """The values of an event after those of fixed size, each with the summary that it is in."""
        start = self._starts[event]
        summary = self.payload(start, self._ends[event] - start)
        try:
            for value in read_values(summary, self._layouts[self._layout_of[event]].end):
                if value.kind == self.tags.get(value.tag, ("",))[0]:
                    yield value, summary
        except DamagedError:  # the file was replaced since it was indexed
            return
