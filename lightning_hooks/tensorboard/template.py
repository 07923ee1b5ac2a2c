"""A serialized summary whose float slots are overwritten: from the second event on, writing a step builds no message.

In a serialized value the number, or the content of the vector, is the last field, so its bytes are the last ones.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT

_WALL_TIME, _STEP, _SUMMARY, _VALUE = b"\x09", b"\x10", b"\x2a", b"\x0a"  # field numbers and wire types in their messages


class Template:
    """A summary of vectors and numbers, in this order.

    Args:
        vectors: tag and length of each.
        numbers: tags.

    Example:
        >>> filled = Template([("v", 2)], ["a"]).fill(np.array([1.0, 2.0, 3.0], dtype="<f4"))
        >>> Summary.FromString(filled).value[1]
        tag: "a"
        simple_value: 3
        <BLANKLINE>
    """

    def __init__(self, vectors: Sequence[tuple[str, int]], numbers: Sequence[str]) -> None:
        parts: list[bytes] = []
        ends: list[int] = []
        size = 0
        for message in [*(_vector(tag, length) for tag, length in vectors), *map(_number, numbers)]:
            part = _VALUE + varint(len(message)) + message
            size += len(part)
            parts.append(part)
            ends.append(size)
        self._buffer = bytearray(b"".join(parts))
        self._bytes = memoryview(self._buffer)
        self._slots: list[tuple[slice, slice]] = []
        taken = 0
        for (_, length), end in zip(vectors, ends, strict=False):
            self._slots.append((slice(end - 4 * length, end), slice(taken, taken + 4 * length)))
            taken += 4 * length
        self._taken = taken
        starts = np.array(ends[len(vectors) :], dtype=np.intp) - 4
        self._numbers = (starts[:, None] + np.arange(4)).ravel()
        self._array = np.frombuffer(self._buffer, dtype=np.uint8)

    def fill(self, floats: NDArray[np.float32]) -> bytes:
        """The summary with these numbers: those of the vectors, one after the other, then the others.

        Args:
            floats: little-endian float32.
        """
        raw = floats.view(np.uint8)
        content = memoryview(raw.data)
        for slot, source in self._slots:
            self._bytes[slot] = content[source]
        self._array[self._numbers] = raw[self._taken :]
        return bytes(self._buffer)


def event_bytes(wall_time: float, step: int, summary: bytes) -> bytes:
    """A serialized event.

    Args:
        wall_time: seconds since 1970.
        step: the x-axis, at least 0.
        summary: serialized.
    """
    return b"".join((_WALL_TIME, struct.pack("<d", wall_time), _STEP, varint(step), _SUMMARY, varint(len(summary)), summary))


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


def _vector(tag: str, length: int) -> bytes:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=length)])
    tensor = TensorProto(dtype=DT_FLOAT, tensor_shape=shape, tensor_content=bytes(4 * length))
    message: bytes = Summary.Value(tag=tag, tensor=tensor).SerializeToString()
    return message


def _number(tag: str) -> bytes:
    message: bytes = Summary.Value(tag=tag, simple_value=1.0).SerializeToString()
    return message
