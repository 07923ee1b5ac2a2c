"""Serializes one step as one event: the table, the scalars and the histograms in a single summary.

The histograms are there twice: those of every row in the table, about 20 to 90 bytes each, and TensorBoard's own, of which
there are at most as many as the monitor allows.

The table is written as one vector for each tensor and statistic, about five bytes a value. The names of the rows are written
once per file, as a summary of their own. The tag of a vector contains a hash of these names: TensorBoard keeps only the
first metadata of a tag across all files of a run, so after a resume with different rows one tag for both lists would show the
values under the wrong names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_STRING

from lightning_hooks import backends
from lightning_hooks.rules.prefix import name_of
from lightning_hooks.stats.stored_counts import encode_counts
from lightning_hooks.tensorboard.histograms import histogram_bytes
from lightning_hooks.tensorboard.messages import value_bytes
from lightning_hooks.tensorboard.tags import ABOUT, FACTS, FOUND, INDEX, PLUGIN, ROWS, TABLE, WINDOW, histograms_tag

if TYPE_CHECKING:
    from lightning_hooks.records.entry import LogEntry
    from lightning_hooks.records.table_layout import SeriesHeader

FillFloats = Callable[[bytearray, NDArray[np.int64], NDArray[np.float64]], None]
_TEMPLATES = 16
"""The most templates that are kept."""


class EventBuilder:
    """Builds the summaries of one event file, and remembers for which tags the file already has metadata.

    Example:
        >>> EventBuilder().row_list(("a", "b"))
        '59900c43'
    """

    def __init__(self) -> None:
        self._compiled = backends.events().module
        self._hashes: dict[tuple[str, ...], str] = {}
        self._explained: set[str] = set()
        # By kind of event (see `_numbers`): the template, or "seen" after the first event of the kind.
        self._templates: dict[tuple[Any, ...], Template | Literal["seen"]] = {}

    def row_list(self, names: tuple[str, ...]) -> str:
        """The hash of a list of row names, eight hexadecimal digits."""
        if names not in self._hashes:
            self._hashes[names] = hashlib.blake2b("\n".join(names).encode(), digest_size=4).hexdigest()
        return self._hashes[names]

    def serialized(self, entry: LogEntry) -> bytes:
        """The summary of one step as bytes, with the facts that have changed and the steps that it merges."""
        summary = self._numbers(entry)
        # Join the bytes: in protocol buffers, the bytes of two messages one after the other are one message with the values of
        # both.
        for kind, text in ((FACTS, entry.facts), (WINDOW, entry.window)):
            if text:
                summary += self._text(f"{TABLE}/{kind}/{name_of(entry.monitor)}", text).SerializeToString()
        return summary

    def _numbers(self, entry: LogEntry) -> bytes:
        """The tables, scalars and histograms of one step as bytes.

        The first event of a kind is built as a message. From the second event of the kind on a template is filled, if the
        compiled part is there. Most fits have one kind with a single event, the first step, and a template of that kind would
        only take memory.
        """
        if self._compiled is None:
            return self._message(entry)
        # `kind` is the kind of the event: events of one kind differ only in their numbers.
        rows = entry.measured.tobytes() if entry.merged is None else _TupleKey(entry.merged[0])
        headers, table_values = entry.table_series
        kind = entry.prefix, _TupleKey(headers), _TupleKey(entry.headers), rows, tuple(entry.summaries)
        template = self._templates.get(kind)
        if template is None:
            # If the measured rows change from step to step, there is no end of kinds: clear the cache.
            if len(self._templates) >= _TEMPLATES:
                self._templates.clear()
            self._templates[kind] = "seen"
            return self._message(entry)
        if template == "seen":
            template = self._templates[kind] = self._template(entry, self._compiled.fill_floats)
        numbers = np.array([*entry.summaries.values()], dtype=np.float64)
        if entry.merged is not None:
            numbers = np.concatenate([entry.merged[1], numbers])
        filled = template.fill(np.concatenate([table_values, entry.values]), numbers)
        if len(entry.histogram_tags):
            filled += histogram_bytes(entry.histogram_tags, entry.histogram_counts, entry.bucket_limits)
        return filled + self._row_histograms(entry).SerializeToString() if entry.row_histograms else filled

    def _message(self, entry: LogEntry) -> bytes:
        summary: bytes = self.summary(entry).SerializeToString()
        return summary

    def _template(self, entry: LogEntry, fill_floats: FillFloats) -> Template:
        headers, table_values = entry.table_series
        vectors = [(self._vector_tag(entry, header), len(header.names)) for header in headers]
        # Write a scalar for each measured row and statistic, but none for a count. If scalars are merged over rows, write none
        # for single rows.
        is_logged = entry.measured.copy()
        for header in entry.headers:
            if header.stat == "count" or entry.merged is not None:
                is_logged[header.span] = False
        positions = (np.flatnonzero(is_logged) + len(table_values)).tolist()
        return Template(fill_floats, vectors, list(entry.scalars), positions)

    def _vector_tag(self, entry: LogEntry, header: SeriesHeader) -> str:
        return f"{TABLE}/{name_of(entry.prefix)}{header.tensor}/{header.stat}/{self.row_list(header.names)}"

    def summary(self, entry: LogEntry) -> Summary:
        """The summary of one step as a message."""
        out = Summary()
        headers, table_values = entry.table_series
        for header in headers:
            self._add_rows(out, f"{TABLE}/{ROWS}/{self.row_list(header.names)}", header.names)
            self._add_vector(out, self._vector_tag(entry, header), table_values[header.span])
        for tag, value in entry.scalars.items():
            out.value.add(tag=tag, simple_value=value)
        if len(entry.histogram_tags):
            out.MergeFromString(histogram_bytes(entry.histogram_tags, entry.histogram_counts, entry.bucket_limits))
        out.MergeFrom(self._row_histograms(entry))
        return out

    def _row_histograms(self, entry: LogEntry) -> Summary:
        """The histograms of the rows of each tensor: one string for each row of its list, empty for a row without one."""
        out = Summary()
        for each in entry.row_histograms:
            digest = self.row_list(each.names)
            self._add_rows(out, f"{TABLE}/{ROWS}/{digest}", each.names)
            strings = [b""] * len(each.names)
            for row, encoded in zip(each.written.tolist(), encode_counts(each.counts), strict=True):
                strings[row] = encoded
            tag = histograms_tag(f"{name_of(entry.prefix)}{each.tensor}", digest)
            metadata = None if tag in self._explained else self._metadata(tag)
            out.value.add(tag=tag, tensor=_string_tensor(strings), metadata=metadata)
        return out

    def about(self, rows: Mapping[str, Mapping[str, Any]], prefix: str) -> Summary:
        """A summary with the facts about the rows of a monitor, by name of the row, as JSON."""
        return self._text(f"{TABLE}/{ABOUT}/{name_of(prefix)}rows", json.dumps(rows))

    def index(self, index: str) -> Summary:
        """A summary with the row index of step views, which is given as JSON."""
        digest = hashlib.blake2b(index.encode(), digest_size=8).hexdigest()
        return self._text(f"{TABLE}/{INDEX}/{digest}", index)

    def findings(self, summary: Mapping[str, Any], prefix: str) -> Summary:
        """A summary with what health rules have found, which a `summary.json` holds too."""
        return self._text(f"{FOUND}/{prefix}", json.dumps(summary))

    def _text(self, tag: str, text: str) -> Summary:
        out = Summary()
        tensor = TensorProto(dtype=DT_STRING, tensor_shape=TensorShapeProto(), string_val=[text.encode()])
        out.value.add(tag=tag, tensor=tensor, metadata=self._metadata(tag))
        return out

    def _add_rows(self, out: Summary, tag: str, names: tuple[str, ...]) -> None:
        if tag in self._explained:
            return
        out.value.add(tag=tag, tensor=_string_tensor([name.encode() for name in names]), metadata=self._metadata(tag))

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
    """A tuple in a dictionary key whose hash is its length.

    Hashing a thousand tags at every step would take as long as writing their numbers. The key holds the tuple, so two keys with
    the same tuple object are equal without comparing items.
    """

    __slots__ = ("_items",)

    def __init__(self, items: tuple[Any, ...]) -> None:
        self._items = items

    def __hash__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TupleKey) and (self._items is other._items or self._items == other._items)


class Template:
    """A serialized summary of vectors, then numbers, whose floats are overwritten at every step.

    In a serialized value the number, or the content of the vector, is the last field. Its floats are therefore the last bytes
    of the value.

    Args:
        fill_floats: the compiled function that writes numbers into runs of floats of a buffer.
        vectors: tag and length of each vector.
        numbers: tags of the numbers.
        positions: the first `len(positions)` numbers are taken from the `values` of `fill`, at these indices; the other numbers
            are taken from its `numbers`.
    """

    def __init__(
        self,
        fill_floats: FillFloats,
        vectors: Sequence[tuple[str, int]],
        numbers: Sequence[str],
        positions: Sequence[int] = (),
    ) -> None:
        fields: list[bytes] = []
        ends: list[int] = []
        size = 0
        for message in [*(_vector(tag, length) for tag, length in vectors), *map(_number, numbers)]:
            field = value_bytes(message)
            size += len(field)
            fields.append(field)
            ends.append(size)
        self._buffer = bytearray(b"".join(fields))
        runs: list[tuple[int, int, int]] = []
        position = 0
        for (_, length), end in zip(vectors, ends, strict=False):
            runs.append((end - 4 * length, position, length))
            position += length
        starts = [end - 4 for end in ends[len(vectors) :]]
        runs += [(start, index, 1) for start, index in zip(starts, positions, strict=False)]
        self._fill_floats = fill_floats
        # Runs of adjacent floats: the offset of the first byte in the buffer, the index of the first number, and the length.
        self._of_vectors = np.array(runs, dtype=np.int64).reshape(-1, 3)
        of_numbers = [(start, i, 1) for i, start in enumerate(starts[len(positions) :])]
        self._of_numbers = np.array(of_numbers, dtype=np.int64).reshape(-1, 3)

    def fill(self, values: NDArray[np.float64], numbers: NDArray[np.float64]) -> bytes:
        """The summary with these numbers.

        Args:
            values: the values of the vectors, one vector after the other; more may follow, which only `positions` point to.
            numbers: the values of the tags without a position.
        """
        self._fill_floats(self._buffer, self._of_vectors, np.ascontiguousarray(values))
        self._fill_floats(self._buffer, self._of_numbers, np.ascontiguousarray(numbers))
        return bytes(self._buffer)


def _string_tensor(strings: Sequence[bytes]) -> TensorProto:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(strings))])
    return TensorProto(dtype=DT_STRING, tensor_shape=shape, string_val=strings)


def _float_tensor(content: bytes) -> TensorProto:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(content) // 4)])
    return TensorProto(dtype=DT_FLOAT, tensor_shape=shape, tensor_content=content)


def _vector(tag: str, length: int) -> bytes:
    message: bytes = Summary.Value(tag=tag, tensor=_float_tensor(bytes(4 * length))).SerializeToString()
    return message


def _number(tag: str) -> bytes:
    message: bytes = Summary.Value(tag=tag, simple_value=1.0).SerializeToString()
    return message
