"""The messages of an event file as bytes: events and parts of summaries are written here, and read as far as an index needs.

No protocol buffer is decoded with the library for it, which takes a hundred times as long: the few fields are read here.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from typing import BinaryIO, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Kind = Literal["vector", "number", "histogram", "strings", "other"]

HEAD: Final = 12  # bytes before the data of a record: its length and the checksum of that
FOOT: Final = 4  # the checksum of the data
LONGEST: Final = (1 << 31) - 1  # bytes of a message: protocol buffers have no longer ones
# Field numbers and wire types (number << 3 | type) of the messages Event, Summary, Summary.Value, TensorProto and
# HistogramProto.
_FIXED64, _LENGTH, _FIXED32 = 1, 2, 5
_WALL_TIME, _STEP, _SUMMARY = 0x09, 0x10, 0x2A
_VALUE = 0x0A
_TAG, _NUMBER, _HISTOGRAM, _TENSOR, _METADATA = 0x0A, 0x15, 0x2A, 0x42, 0x4A
_DTYPE, _CONTENT, _STRING = 0x08, 0x22, 0x42
_FLOAT = 1  # the data type of float32
_LIMITS, _COUNTS = 0x32, 0x3A  # packed doubles
_PLUGIN, _PLUGIN_NAME = 0x0A, 0x0A


class Value(NamedTuple):
    """One value of a summary.

    Args:
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


def event_bytes(wall_time: float, step: int, summary: bytes) -> bytes:
    """A serialized event.

    Args:
        wall_time: seconds since 1970.
        step: the x-axis, at least 0.
        summary: serialized.
    """
    fixed = struct.pack("<BdB", _WALL_TIME, wall_time, _STEP)
    return b"".join((fixed, varint(step), bytes((_SUMMARY,)), varint(len(summary)), summary))


def value_bytes(value: bytes) -> bytes:
    """A serialized value as a part of a summary."""
    return bytes((_VALUE,)) + varint(len(value)) + value


def varint(number: int) -> bytes:
    """A number of at least 0 in groups of seven bits, as protocol buffers write it.

    Example:
        >>> varint(300).hex()
        'ac02'
    """
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


class DamagedError(ValueError):
    """Bytes that are no message."""


def read_records(file: BinaryIO, end: int) -> Iterator[tuple[bytes, int]]:
    """The data of every record from here on that ends before `end`, and the checksum beside it.

    Args:
        end: the size of the file. The length of a record is compared with it before memory is taken for the data.
    """
    while True:
        head = file.read(HEAD)
        if len(head) < HEAD or not is_head(head):
            return
        length = length_in(head)
        if length > LONGEST or file.tell() + length + FOOT > end:
            return
        data, foot = file.read(length), file.read(FOOT)
        if len(foot) < FOOT:
            return
        yield data, int.from_bytes(foot, "little")


def length_in(head: bytes) -> int:
    """The bytes of data that the head of a record announces."""
    return int.from_bytes(head[:8], "little")


def is_head(head: bytes) -> bool:
    """Whether these bytes begin a record: the length of its data, and the checksum of that."""
    return checksum(head[:8]) == int.from_bytes(head[8:], "little")


def checksum(data: bytes) -> int:
    """The checksum of a record, as TensorBoard computes it."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    return int(masked_crc32c(data))


def read_event(data: bytes) -> tuple[int, float, int, int] | None:
    """The step, the time, the first byte of the summary and the byte after it; None for an event without a summary."""
    step, wall_time, summary = 0, 0.0, None
    for field, first, last in _fields(data, 0, len(data)):
        if field == _STEP:
            step = first - (1 << 64) if first >> 63 else first  # of a varint the number itself; negative ones wrap around
        elif field == _WALL_TIME:
            (wall_time,) = struct.unpack_from("<d", data, first)
        elif field == _SUMMARY:
            summary = first, last
    return None if summary is None else (step, wall_time, *summary)


def read_values(summary: bytes, at: int = 0) -> Iterator[Value]:
    """The values of a summary from a byte on."""
    for field, start, end in _fields(summary, at, len(summary)):
        if field != _VALUE:
            continue
        tag, plugin = "", ""
        kind: Kind = "other"
        payload = start, start
        for inner, a, b in _fields(summary, start, end):
            if inner == _TAG:
                tag = summary[a:b].decode(errors="replace")
            elif inner == _NUMBER:
                kind, payload = "number", (a, b)
            elif inner == _HISTOGRAM:
                kind, payload = "histogram", (a, b)
            elif inner == _TENSOR:
                kind, payload = _tensor(summary, a, b)
            elif inner == _METADATA:
                plugin = _plugin_name(summary, a, b)
        yield Value(tag, kind, payload[0], payload[1] - payload[0], end, plugin)


def strings(tensor: bytes) -> list[str]:
    """The strings of a serialized tensor; none of a damaged one, with a warning."""
    try:
        return [tensor[a:b].decode(errors="replace") for field, a, b in _fields(tensor, 0, len(tensor)) if field == _STRING]
    except DamagedError as error:
        warnings.warn(f"damaged strings are read as none ({error})", stacklevel=2)
        return []


def buckets(histogram: bytes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The right edges and the counts of a serialized histogram; none of a damaged one, with a warning."""
    try:
        found = {field: histogram[a:b] for field, a, b in _fields(histogram, 0, len(histogram)) if field in (_LIMITS, _COUNTS)}
        edges, counts = (np.frombuffer(found.get(field, b""), dtype="<f8") for field in (_LIMITS, _COUNTS))
        if len(edges) != len(counts):
            raise DamagedError(f"it has {len(edges)} edges and {len(counts)} counts")
        return edges, counts
    except ValueError as error:  # DamagedError, and a size that is no multiple of 8
        warnings.warn(f"a damaged histogram is read as an empty one ({error})", stacklevel=2)
        return np.empty(0), np.empty(0)


def _tensor(data: bytes, start: int, end: int) -> tuple[Kind, tuple[int, int]]:
    dtype = 0
    for field, a, b in _fields(data, start, end):
        if field == _DTYPE:
            dtype = a
        if field == _CONTENT and dtype == _FLOAT:
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
    """The fields of a message: number and wire type, first byte and the byte after; of a varint its value, twice.

    Raises:
        DamagedError: the bytes are no message that TensorBoard writes.
    """
    try:
        while at < end:
            field, at = _varint(data, at)
            kind = field & 7
            size = 0
            if kind in (0, _LENGTH):
                number, at = _varint(data, at)
                size = number if kind else 0
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise DamagedError(f"byte {at} begins a field of a kind that TensorBoard does not write")
            if at + size > end:  # also where a number goes on after the message that holds it
                raise DamagedError(f"a field ends {at + size - end} bytes after its message")
            if kind:
                yield field, at, at + size
            else:
                yield field, number, number
            at += size
    except IndexError as error:
        raise DamagedError("the bytes end within a number") from error


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
        if number >> 64 or shift > 63:
            raise DamagedError(f"the number that ends at byte {at} has more than 64 bits")
        if byte < 128:
            return number, at
        shift += 7
