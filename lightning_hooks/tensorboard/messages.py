"""Reads and writes the protocol buffers of an event file: whole events, and the fields of summaries that an index needs.

The protocol buffer library is not used to read them, because it decodes every field and takes a hundred times as long.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from typing import BinaryIO, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Kind = Literal["vector", "number", "histogram", "strings", "other"]

HEAD: Final = 12  # bytes before the data of a record: the length of the data, and the checksum of the length
FOOT: Final = 4  # bytes after the data of a record: the checksum of the data
LONGEST: Final = (1 << 31) - 1  # bytes: the limit of protocol buffers for one message
# Field numbers and wire types (number << 3 | type) of the messages Event, Summary, Summary.Value, TensorProto and
# HistogramProto.
_FIXED64, _LENGTH, _FIXED32 = 1, 2, 5
_WALL_TIME, _STEP, _SUMMARY = 0x09, 0x10, 0x2A
_VALUE = 0x0A
_TAG, _NUMBER, _HISTOGRAM, _TENSOR, _METADATA = 0x0A, 0x15, 0x2A, 0x42, 0x4A
_DTYPE, _CONTENT, _STRING = 0x08, 0x22, 0x42
_FLOAT = 1  # TensorFlow's number of the data type float32
_LIMITS, _COUNTS = 0x32, 0x3A  # of a histogram, each with packed float64 numbers
_PLUGIN, _PLUGIN_NAME = 0x0A, 0x0A


class Value(NamedTuple):
    """One value of a summary.

    Args:
        tag: the tag of the value.
        kind: the type of its payload.
        start: offset of the payload in the summary.
        size: of the payload in bytes.
        end: offset of the byte after the whole value.
        plugin: the name of the plugin in the metadata; empty if the value has no metadata.
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
        step: the global step, at least 0.
        summary: the serialized summary.
    """
    fixed = struct.pack("<BdB", _WALL_TIME, wall_time, _STEP)
    return b"".join((fixed, varint(step), bytes((_SUMMARY,)), varint(len(summary)), summary))


def value_bytes(value: bytes) -> bytes:
    """A serialized value as a field of a serialized summary."""
    return bytes((_VALUE,)) + varint(len(value)) + value


def varint(number: int) -> bytes:
    """A number of at least 0 as the varint of protocol buffers: groups of seven bits, the lowest first.

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
    """The bytes are not a valid message."""


def read_records(file: BinaryIO, end: int) -> Iterator[tuple[bytes, int]]:
    """The data and the stated checksum of each record from the position of the file up to the first unreadable record.

    Args:
        file: an event file, open at the start of a record.
        end: the size of the file. A record whose length reaches beyond it is not read, so no memory is allocated for it.
    """
    at = file.tell()
    undamaged = b""
    while True:
        head = file.read(HEAD)
        # Records of the same length have the same head. Compute the checksum of a head only if it differs from the one before.
        if len(head) < HEAD or (head != undamaged and not is_head(head)):
            return
        undamaged, length = head, length_in(head)
        at += HEAD + length + FOOT
        if length > LONGEST or at > end:
            return
        data, foot = file.read(length), file.read(FOOT)
        if len(foot) < FOOT:
            return
        yield data, int.from_bytes(foot, "little")


def length_in(head: bytes) -> int:
    """The bytes of data that the head of a record announces."""
    return int.from_bytes(head[:8], "little")


def is_head(head: bytes) -> bool:
    """Whether the head of a record is undamaged: its checksum is that of the length."""
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
            # A varint has no sign: a negative step is stored modulo 2**64.
            step = first - (1 << 64) if first >> 63 else first
        elif field == _WALL_TIME:
            (wall_time,) = struct.unpack_from("<d", data, first)
        elif field == _SUMMARY:
            summary = first, last
    return None if summary is None else (step, wall_time, *summary)


def read_values(summary: bytes, at: int = 0) -> Iterator[Value]:
    """The values of a summary, beginning with the one at offset `at`."""
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
    """The strings of a serialized tensor as texts; if the tensor is damaged, warn and return an empty list."""
    return [each.decode(errors="replace") for each in byte_strings(tensor)]


def byte_strings(tensor: bytes) -> list[bytes]:
    """The strings of a serialized tensor; if the tensor is damaged, warn and return an empty list."""
    try:
        return [tensor[a:b] for field, a, b in _fields(tensor, 0, len(tensor)) if field == _STRING]
    except DamagedError as error:
        warnings.warn(f"damaged strings are read as none ({error})", stacklevel=2)
        return []


def buckets(histogram: bytes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The right edges and the counts of a serialized histogram; if it is damaged, warn and return empty arrays."""
    try:
        found = {field: histogram[a:b] for field, a, b in _fields(histogram, 0, len(histogram)) if field in (_LIMITS, _COUNTS)}
        edges, counts = (np.frombuffer(found.get(field, b""), dtype="<f8") for field in (_LIMITS, _COUNTS))
        if len(edges) != len(counts):
            raise DamagedError(f"it has {len(edges)} edges and {len(counts)} counts")
        return edges, counts
    # DamagedError is a ValueError, and NumPy raises one for a size that is not a multiple of 8 bytes.
    except ValueError as error:
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
    """The fields of a message as (key, start, end); for a varint, start and end are both its value.

    The key of a field is `number << 3 | wire type`, as in the constants of this module.

    Raises:
        DamagedError: the bytes are not a message as TensorBoard writes it.
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
            # The field ends after its message: its size is damaged, or a varint was read beyond the end of the message.
            if at + size > end:
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
