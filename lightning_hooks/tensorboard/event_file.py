"""The index of one event file: where each tag has its values, without decoding them.

Most events of a run differ in their numbers only. Such events share a layout: the tags and the offsets of the numbers in a
summary. The index of an event is then its step, its time, its offset in the file and its layout. It is extended as the file
grows, and its size does not depend on the number of rows.

No protocol buffer is decoded with the library for it, which takes a hundred times as long: the few fields are read here.
"""

from __future__ import annotations

import itertools
import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]
Kind = Literal["vector", "number", "histogram", "strings", "other"]

# Field numbers and wire types (number << 3 | type) of the messages Event, Summary, Summary.Value, TensorProto and
# HistogramProto.
_FIXED64, _LENGTH, _FIXED32 = 1, 2, 5
_WALL_TIME, _STEP, _SUMMARY = 0x09, 0x10, 0x2A
_VALUE = 0x0A
_TAG, _NUMBER, _HISTOGRAM, _TENSOR, _METADATA = 0x0A, 0x15, 0x2A, 0x42, 0x4A
_CONTENT, _STRING = 0x22, 0x42
_LIMITS, _COUNTS = 0x32, 0x3A  # packed doubles
_PLUGIN, _PLUGIN_NAME = 0x0A, 0x0A
_FIXED_SIZE: Final = ("vector", "number")
_HEAD: Final = 12  # bytes before the data of a record: its length and the checksum of that
_FOOT: Final = 4  # the checksum of the data


class Value(NamedTuple):
    """One value of a summary.

    Args:
        tag: its tag.
        kind: how its payload is read.
        start: of the payload, counted from the first byte of the summary.
        size: of the payload in bytes.
        end: the byte after the whole value.
        plugin: the name of the plugin in its metadata; empty where it has none.
    """

    tag: str
    kind: Kind
    start: int
    size: int
    end: int
    plugin: str


class _Layout(NamedTuple):
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


class EventFile:
    """One event file.

    The file is read, never mapped into memory: a mapped file that somebody truncates ends the process.

    Args:
        path: of the file.

    Attributes:
        tags: of every tag the kind of its values and the name of its plugin, in the order of the file.
        readings: how often it was read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.readings = 0
        self._clear()
        self.refresh()

    def _clear(self) -> None:
        self.readings += 1
        self.tags: dict[str, tuple[Kind, str]] = {}
        self._size = 0
        self._end = 0  # of the last whole record
        self._steps, self._times = array("q"), array("d")
        self._starts, self._ends = array("q"), array("q")  # of summaries, in the file
        self._layout_of = array("i")
        self._layouts: list[_Layout] = []
        self._by_beginning: dict[bytes, list[int]] = {}
        self._tail: dict[str, array[int]] = {}  # events that have this tag after the part of fixed size

    def refresh(self) -> bool:
        """Read what was appended since; whether anything changed. A file that shrank is read again from its beginning."""
        size = os.stat(self.path).st_size
        if size == self._size:
            return False
        shrank = size < self._size
        if shrank:
            self._clear()
        before = self._end
        with open(self.path, "rb") as file:
            file.seek(self._end)
            for data, checksum in _records(file):
                # What is damaged is at the end: of a process that was killed, or where a disk was full.
                if self._end + len(data) + _HEAD + _FOOT >= size and _masked(data) != checksum:
                    break
                self._add_event(data, self._end + _HEAD)
                self._end += _HEAD + len(data) + _FOOT
        self._size = size
        return shrank or self._end > before

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
        if not len(first):
            return layout_of, layout_of, layout_of
        events = np.flatnonzero(first[layout_of] >= 0)
        starts = np.array(self._starts, dtype=np.int64)[events] + first[layout_of[events]]
        size = sizes[layout_of[events]]
        if tag in self._tail:
            found = [(event, *where) for event in self._tail[tag] for where in self._in_tail(event, tag)]
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
                    row[:] = np.frombuffer(file.read(layout.end), dtype=np.uint8)[bytes_of].view("<f4")[:, 0]
            yield from ((tag, events, values[:, column]) for column, tag in enumerate(offsets))

    def rest(self) -> Iterator[tuple[int, Value, bytes]]:
        """Every value from the first of variable size on, with its event and its payload: histograms, texts, lists of rows."""
        for event in sorted({event for events in self._tail.values() for event in events}):
            start = self._starts[event]
            content = self.payload(start, self._ends[event] - start)
            for value in _values(content, self._layouts[self._layout_of[event]].end):
                yield event, value, content[value.start : value.start + value.size]

    def payload(self, start: int, size: int) -> bytes:
        """The bytes of a payload."""
        with open(self.path, "rb") as file:
            file.seek(start)
            return file.read(size)

    def _add_event(self, data: bytes, offset: int) -> None:
        step, wall_time, summary = 0, 0.0, None
        for field, first, last in _fields(data, 0, len(data)):
            if field == _STEP:
                step = first - (1 << 64) if first >> 63 else first  # of a varint the number itself; negative ones wrap around
            elif field == _WALL_TIME:
                (wall_time,) = struct.unpack_from("<d", data, first)
            elif field == _SUMMARY:
                summary = first, last
        if summary is None:
            return
        number = len(self._steps)
        content = data[slice(*summary)]
        layout = self._known_layout(content)
        if layout is None:
            layout = self._new_layout(content)
        self._steps.append(step)
        self._times.append(wall_time)
        self._starts.append(offset + summary[0])
        self._ends.append(offset + summary[1])
        self._layout_of.append(layout)
        if len(content) > self._layouts[layout].end:
            for tag in {self._note(value) for value in _values(content, self._layouts[layout].end)}:
                self._tail.setdefault(tag, array("q")).append(number)

    def _known_layout(self, content: bytes) -> int | None:
        for i in self._by_beginning.get(_beginning(content), ()):
            layout = self._layouts[i]
            if layout.fits(content):
                following = next(_values(content, layout.end), None)
                if following is None or following.kind not in _FIXED_SIZE:
                    return i
        return None

    def _new_layout(self, content: bytes) -> int:
        values = list(itertools.takewhile(lambda value: value.kind in _FIXED_SIZE, _values(content, 0)))
        end = values[-1].end if values else 0
        is_fixed = np.ones(end, dtype=np.bool_)
        for value in values:
            self._note(value)
            is_fixed[value.start : value.start + value.size] = False
        where = np.flatnonzero(is_fixed)
        offsets = {value.tag: (value.start, value.size) for value in values}
        self._layouts.append(_Layout(offsets, end, where, np.frombuffer(content, dtype=np.uint8)[where]))
        self._by_beginning.setdefault(_beginning(content), []).append(len(self._layouts) - 1)
        return len(self._layouts) - 1

    def _note(self, value: Value) -> str:
        kind, plugin = self.tags.get(value.tag, (value.kind, ""))
        self.tags[value.tag] = kind, plugin or value.plugin  # metadata comes with the first value of a tag only
        return value.tag

    def _in_tail(self, event: int, tag: str) -> Iterator[tuple[int, int]]:
        start = self._starts[event]
        content = self.payload(start, self._ends[event] - start)
        for value in _values(content, self._layouts[self._layout_of[event]].end):
            if value.tag == tag:
                yield start + value.start, value.size


def _records(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """The data of every record from here on of which all bytes are there, and the checksum beside it."""
    while True:
        head = file.read(_HEAD)
        if len(head) < _HEAD or _masked(head[:8]) != int.from_bytes(head[8:], "little"):
            return
        length = int.from_bytes(head[:8], "little")
        data, foot = file.read(length), file.read(_FOOT)
        if len(foot) < _FOOT:
            return
        yield data, int.from_bytes(foot, "little")


def _beginning(content: bytes) -> bytes:
    """The part of a summary by which its layout is looked up: what is before the first number or vector, its tag included."""
    first = next(_values(content, 0), None)
    return b"" if first is None else content[: first.start]


def _values(data: bytes, at: int) -> Iterator[Value]:
    """The values of a summary from a byte on."""
    for field, start, end in _fields(data, at, len(data)):
        if field != _VALUE:
            continue
        tag, plugin = "", ""
        kind: Kind = "other"
        payload = start, start
        for inner, a, b in _fields(data, start, end):
            if inner == _TAG:
                tag = data[a:b].decode(errors="replace")
            elif inner == _NUMBER:
                kind, payload = "number", (a, b)
            elif inner == _HISTOGRAM:
                kind, payload = "histogram", (a, b)
            elif inner == _TENSOR:
                kind, payload = _tensor(data, a, b)
            elif inner == _METADATA:
                plugin = _plugin_name(data, a, b)
        yield Value(tag, kind, payload[0], payload[1] - payload[0], end, plugin)


def strings(tensor: bytes) -> list[str]:
    """The strings of a serialized tensor."""
    return [tensor[a:b].decode(errors="replace") for field, a, b in _fields(tensor, 0, len(tensor)) if field == _STRING]


def buckets(histogram: bytes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The right edges and the counts of a serialized histogram."""
    found = {field: histogram[a:b] for field, a, b in _fields(histogram, 0, len(histogram)) if field in (_LIMITS, _COUNTS)}
    return np.frombuffer(found.get(_LIMITS, b""), dtype="<f8"), np.frombuffer(found.get(_COUNTS, b""), dtype="<f8")


def _tensor(data: bytes, start: int, end: int) -> tuple[Kind, tuple[int, int]]:
    for field, a, b in _fields(data, start, end):
        if field == _CONTENT:
            return "vector", (a, b)
        if field == _STRING:
            return "strings", (start, end)
    return "other", (start, end)


def _plugin_name(data: bytes, start: int, end: int) -> str:
    for field, a, b in _fields(data, start, end):
        if field == _PLUGIN:
            for inner, c, d in _fields(data, a, b):
                if inner == _PLUGIN_NAME:
                    return data[c:d].decode(errors="replace")
    return ""


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message: number and wire type, first byte and the byte after; of a varint its value, twice."""
    while at < end:
        field, at = _varint(data, at)
        kind = field & 7
        if kind == _LENGTH:
            size, at = _varint(data, at)
            yield field, at, at + size
            at += size
        elif kind == 0:
            number, at = _varint(data, at)
            yield field, number, number
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            yield field, at, at + size
            at += size
        else:
            return  # no message that TensorBoard writes has another kind


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 128:
        return byte, at
    number, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7


def _masked(data: bytes) -> int:
    """The checksum of a record, as TensorBoard computes it."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    return int(masked_crc32c(data))
