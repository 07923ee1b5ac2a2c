"""A serialized summary whose float slots are overwritten: from the second event on, writing a step builds no message.

In a serialized value the number, or the content of the vector, is the last field, so its bytes are the last ones.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT

from lightning_hooks.tensorboard._compiled import compiled

_WALL_TIME, _STEP, _SUMMARY, _VALUE = b"\x09", b"\x10", b"\x2a", b"\x0a"  # field numbers and wire types in their messages


class Template:
    """A summary of vectors and numbers, in this order.

    Args:
        vectors: tag and length of each.
        numbers: tags.
        places: of the first of these numbers, those that stand in a vector too: where, counted over all vectors.

    Example:
        >>> filled = Template([("v", 2)], ["a", "b"], [1]).fill(np.array([1.0, 2.0]), np.array([3.0]))
        >>> [(value.tag, value.simple_value) for value in Summary.FromString(filled).value[1:]]
        [('a', 2.0), ('b', 3.0)]
    """

    def __init__(self, vectors: Sequence[tuple[str, int]], numbers: Sequence[str], places: Sequence[int] = ()) -> None:
        parts: list[bytes] = []
        ends: list[int] = []
        size = 0
        for message in [*(_vector(tag, length) for tag, length in vectors), *map(_number, numbers)]:
            part = _VALUE + varint(len(message)) + message
            size += len(part)
            parts.append(part)
            ends.append(size)
        self._buffer = bytearray(b"".join(parts))
        slots: list[tuple[int, int, int]] = []
        taken = 0
        for (_, length), end in zip(vectors, ends, strict=False):
            slots.append((end - 4 * length, taken, length))
            taken += length
        starts = [end - 4 for end in ends[len(vectors) :]]
        slots += [(start, place, 1) for start, place in zip(starts, places, strict=False)]
        self._of_vectors = _Slots(slots)
        self._of_numbers = _Slots([(start, i, 1) for i, start in enumerate(starts[len(places) :])])

    def fill(self, values: NDArray[np.float64], numbers: NDArray[np.float64]) -> bytes:
        """The summary with these numbers.

        Args:
            values: those of the vectors, one after the other.
            numbers: those of the tags that have no place in a vector.
        """
        self._of_vectors.fill(self._buffer, values)
        self._of_numbers.fill(self._buffer, numbers)
        return bytes(self._buffer)


class _Slots:
    """Runs of float slots in a buffer.

    Args:
        runs: for each the first byte, the first of the numbers, and how many of them.
    """

    def __init__(self, runs: Sequence[tuple[int, int, int]]) -> None:
        self._compiled = compiled()
        self._runs = np.array(runs, dtype=np.int64).reshape(-1, 3)

    @cached_property
    def _places(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """For NumPy: which number goes into which four bytes."""
        starts, firsts, many = self._runs.T
        within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        into = (np.repeat(starts, many) + 4 * within)[:, None] + np.arange(4)
        return np.repeat(firsts, many) + within, into.ravel()

    def fill(self, buffer: bytearray, numbers: NDArray[np.float64]) -> None:
        """Put numbers into their slots, as little-endian float32."""
        if self._compiled is not None:
            self._compiled.fill_floats(buffer, self._runs, np.ascontiguousarray(numbers))
            return
        taken, into = self._places
        with np.errstate(over="ignore"):
            floats = numbers.take(taken).astype("<f4")
        np.frombuffer(buffer, dtype=np.uint8)[into] = floats.view(np.uint8)


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
