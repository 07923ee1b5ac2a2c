"""One step as one event: the table, the scalars and the histograms in a single summary.

The table form is one vector per (tensor, statistic), about five bytes a value. TensorBoard keeps the first metadata of a tag
across all files of a run, so a vector's tag carries a hash of its list of rows, and the list is a summary of its own, written
at the start of every file: after a resume with other rows no row gets another's name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_STRING

from lightning_hooks import backends
from lightning_hooks.tensorboard.histograms import histogram_bytes
from lightning_hooks.tensorboard.messages import value_bytes
from lightning_hooks.tensorboard.run_index import ABOUT, INDEX, PLUGIN, ROWS, TABLE

if TYPE_CHECKING:
    from lightning_hooks.records.layout import LogEntry
    from lightning_hooks.records.table_layout import Head

_TEMPLATES = 16


class EventBuilder:
    """Builds the summaries of one event file; remembers which tags and lists of rows the file already explains.

    Example:
        >>> EventBuilder().row_list(("a", "b"))
        '59900c43'
    """

    def __init__(self) -> None:
        self._hashes: dict[tuple[str, ...], str] = {}
        self._explained: set[str] = set()
        self._templates: dict[tuple[Any, ...], Template | None] = {}  # by kind; None where there was one event of it

    def row_list(self, names: tuple[str, ...]) -> str:
        """The hash of a list of names of rows."""
        if names not in self._hashes:
            self._hashes[names] = hashlib.blake2b("\n".join(names).encode(), digest_size=4).hexdigest()
        return self._hashes[names]

    def serialized(self, entry: LogEntry) -> bytes:
        """Everything of one step as bytes: the first of a kind is built as a message, from the second on a template is filled.

        Most fits have one event that is alone of its kind, the first, whose template would only take memory.
        """
        # Equal for steps whose events differ in their numbers only.
        rows = entry.measured.tobytes() if entry.merged is None else _TupleKey(entry.merged[0])
        heads, stored = entry.stored
        kind = entry.prefix, _TupleKey(heads), _TupleKey(entry.heads), rows, tuple(entry.summaries)
        if kind not in self._templates:
            if len(self._templates) >= _TEMPLATES:  # what is measured changes from step to step
                self._templates.clear()
            self._templates[kind] = None
            summary: bytes = self.summary(entry).SerializeToString()
            return summary
        template = self._templates[kind]
        if template is None:
            template = self._templates[kind] = self._template(entry)
        numbers = np.array([*entry.summaries.values()], dtype=np.float64)
        if entry.merged is not None:
            numbers = np.concatenate([entry.merged[1], numbers])
        filled = template.fill(np.concatenate([stored, entry.values]), numbers)
        if len(entry.drawn_tags):
            filled += histogram_bytes(entry.drawn_tags, entry.drawn, entry.bucket_limits)
        return filled

    def _template(self, entry: LogEntry) -> Template:
        heads, stored = entry.stored
        vectors = [(self._vector_tag(entry, head), len(head.names)) for head in heads]
        there = entry.measured.copy()
        for head in entry.heads:
            if head.stat == "count" or entry.merged is not None:
                there[head.span] = False
        return Template(vectors, list(entry.scalars), (np.flatnonzero(there) + len(stored)).tolist())

    def _vector_tag(self, entry: LogEntry, head: Head) -> str:
        return f"{TABLE}/{entry.prefix}{head.tensor}/{head.stat}/{self.row_list(head.names)}"

    def summary(self, entry: LogEntry) -> Summary:
        """Everything of one step as a message."""
        out = Summary()
        heads, stored = entry.stored
        for head in heads:
            self._add_rows(out, f"{TABLE}/{ROWS}/{self.row_list(head.names)}", head.names)
            self._add_vector(out, self._vector_tag(entry, head), stored[head.span])
        for tag, value in entry.scalars.items():
            out.value.add(tag=tag, simple_value=value)
        if len(entry.drawn_tags):
            out.MergeFromString(histogram_bytes(entry.drawn_tags, entry.drawn, entry.bucket_limits))
        return out

    def about(self, rows: Mapping[str, Mapping[str, Any]], prefix: str) -> Summary:
        """What is known of the rows of a monitor, by name, as JSON."""
        return self._text(f"{TABLE}/{ABOUT}/{prefix}rows", json.dumps(rows))

    def index(self, index: str) -> Summary:
        """The row index of step views, as JSON."""
        digest = hashlib.blake2b(index.encode(), digest_size=8).hexdigest()
        return self._text(f"{TABLE}/{INDEX}/{digest}", index)

    def _text(self, tag: str, text: str) -> Summary:
        out = Summary()
        tensor = TensorProto(dtype=DT_STRING, tensor_shape=TensorShapeProto(), string_val=[text.encode()])
        out.value.add(tag=tag, tensor=tensor, metadata=self._metadata(tag))
        return out

    def _add_rows(self, out: Summary, tag: str, names: tuple[str, ...]) -> None:
        if tag in self._explained:
            return
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(names))])
        tensor = TensorProto(dtype=DT_STRING, tensor_shape=shape, string_val=[name.encode() for name in names])
        out.value.add(tag=tag, tensor=tensor, metadata=self._metadata(tag))

    def _add_vector(self, out: Summary, tag: str, values: NDArray[np.float64]) -> None:
        with np.errstate(over="ignore"):
            content = values.astype("<f4").tobytes()
        metadata = None if tag in self._explained else self._metadata(tag)
        out.value.add(tag=tag, tensor=_float_tensor(content), metadata=metadata)

    def _metadata(self, tag: str) -> Any:
        self._explained.add(tag)
        plugin = SummaryMetadata.PluginData(plugin_name=PLUGIN)
        return SummaryMetadata(plugin_data=plugin, data_class=DATA_CLASS_TENSOR)


class _TupleKey:
    """A tuple as a part of a key, which holds it: equal if it is the same object, or equals; its hash is its length.

    To hash a thousand tags at every step would take as long as to write their numbers.
    """

    __slots__ = ("_items",)

    def __init__(self, items: tuple[Any, ...]) -> None:
        self._items = items

    def __hash__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TupleKey) and (self._items is other._items or self._items == other._items)


class Template:
    """A serialized summary of vectors and numbers, in this order, whose floats are overwritten at every step.

    In a serialized value the number, or the content of the vector, is the last field, so its bytes are the last ones.

    Args:
        vectors: tag and length of each.
        numbers: tags.
        positions: of the first of these numbers, those that are among the values: where.

    Example:
        >>> filled = Template([("v", 2)], ["a", "b"], [1]).fill(np.array([1.0, 2.0]), np.array([3.0]))
        >>> [(value.tag, value.simple_value) for value in Summary.FromString(filled).value[1:]]
        [('a', 2.0), ('b', 3.0)]
    """

    def __init__(self, vectors: Sequence[tuple[str, int]], numbers: Sequence[str], positions: Sequence[int] = ()) -> None:
        parts: list[bytes] = []
        ends: list[int] = []
        size = 0
        for message in [*(_vector(tag, length) for tag, length in vectors), *map(_number, numbers)]:
            part = value_bytes(message)
            size += len(part)
            parts.append(part)
            ends.append(size)
        self._buffer = bytearray(b"".join(parts))
        runs: list[tuple[int, int, int]] = []
        taken = 0
        for (_, length), end in zip(vectors, ends, strict=False):
            runs.append((end - 4 * length, taken, length))
            taken += length
        starts = [end - 4 for end in ends[len(vectors) :]]
        runs += [(start, position, 1) for start, position in zip(starts, positions, strict=False)]
        self._of_vectors = _FloatFields(runs)
        self._of_numbers = _FloatFields([(start, i, 1) for i, start in enumerate(starts[len(positions) :])])

    def fill(self, values: NDArray[np.float64], numbers: NDArray[np.float64]) -> bytes:
        """The summary with these numbers.

        Args:
            values: those of the vectors, one after the other, and whatever follows.
            numbers: those of the tags that are not among the values.
        """
        self._of_vectors.fill(self._buffer, values)
        self._of_numbers.fill(self._buffer, numbers)
        return bytes(self._buffer)


class _FloatFields:
    """Runs of float fields in a buffer.

    Args:
        runs: for each the first byte, the first of the numbers, and how many of them.
    """

    def __init__(self, runs: Sequence[tuple[int, int, int]]) -> None:
        self._compiled = backends.events().module
        self._runs = np.array(runs, dtype=np.int64).reshape(-1, 3)

    @cached_property
    def _indices(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """For NumPy: the number for each field, and the bytes of each field."""
        starts, firsts, many = self._runs.T
        within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        into = (np.repeat(starts, many) + 4 * within)[:, None] + np.arange(4)
        return np.repeat(firsts, many) + within, into.ravel()

    def fill(self, buffer: bytearray, numbers: NDArray[np.float64]) -> None:
        if self._compiled is not None:
            self._compiled.fill_floats(buffer, self._runs, np.ascontiguousarray(numbers))
            return
        taken, into = self._indices
        with np.errstate(over="ignore"):
            floats = numbers.take(taken).astype("<f4")
        np.frombuffer(buffer, dtype=np.uint8)[into] = floats.view(np.uint8)


def _float_tensor(content: bytes) -> TensorProto:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(content) // 4)])
    return TensorProto(dtype=DT_FLOAT, tensor_shape=shape, tensor_content=content)


def _vector(tag: str, length: int) -> bytes:
    message: bytes = Summary.Value(tag=tag, tensor=_float_tensor(bytes(4 * length))).SerializeToString()
    return message


def _number(tag: str) -> bytes:
    message: bytes = Summary.Value(tag=tag, simple_value=1.0).SerializeToString()
    return message
