"""One step as one event: the table, the scalars and the histograms in a single summary.

The table form is one vector per (tensor, statistic), about five bytes a value. TensorBoard keeps the first metadata of a tag
across all files of a run, so a vector's tag carries a hash of its list of rows, and the list is a summary of its own, written
at the start of every file: after a resume with other rows no row gets another's name.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_STRING

from lightning_hooks.tensorboard import histograms
from lightning_hooks.tensorboard.template import Template

if TYPE_CHECKING:
    from lightning_hooks.records.layout import LogEntry
    from lightning_hooks.records.step_view import Series

PLUGIN: Final = "lightning_hooks"
TABLE: Final = "table"
ROWS: Final = "rows"
_TEMPLATES = 16


class EventBuilder:
    """Builds the summaries of one event file; remembers what the file already explains.

    Example:
        >>> EventBuilder().row_list(("a", "b"))
        '59900c43'
    """

    def __init__(self) -> None:
        self._hashes: dict[tuple[str, ...], str] = {}
        self._explained: set[str] = set()
        self._templates: dict[tuple[Any, ...], Template | None] = {}  # by kind; None where there was one event of it

    def row_list(self, names: tuple[str, ...]) -> str:
        """The hash of a list of rows."""
        if names not in self._hashes:
            self._hashes[names] = hashlib.blake2b("\n".join(names).encode(), digest_size=4).hexdigest()
        return self._hashes[names]

    def serialized(self, entry: LogEntry) -> bytes:
        """Everything of one step as bytes: the first of a kind is built as a message, from the second on a template is filled.

        Most fits have one event that is alone of its kind, the first, whose template would only take memory.

        Args:
            entry: what the step logs.
        """
        # Equal for steps whose events differ in their numbers only.
        rows = entry.measured.tobytes() if entry.merged is None else _Tags(entry.merged[0])
        kind = entry.prefix, _Tags(entry.heads), rows, tuple(entry.summaries)
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
        filled = template.fill(entry.values, numbers)
        if len(entry.drawn_tags):
            filled += histograms.serialized(entry.drawn_tags, entry.drawn, entry.bucket_limits)
        return filled

    def _template(self, entry: LogEntry) -> Template:
        vectors = [(self._vector_tag(entry, series), len(series.names)) for series in entry.series]
        there = entry.measured.copy()
        for head in entry.heads:
            if head.stat == "count" or entry.merged is not None:
                there[head.place] = False
        return Template(vectors, list(entry.scalars), np.flatnonzero(there).tolist())

    def _vector_tag(self, entry: LogEntry, series: Series) -> str:
        return f"{TABLE}/{entry.prefix}{series.tensor}/{series.stat}/{self.row_list(series.names)}"

    def summary(self, entry: LogEntry) -> Summary:
        """Everything of one step as a message.

        Args:
            entry: what the step logs.
        """
        out = Summary()
        for series in entry.series:
            digest = self.row_list(series.names)
            self._add_rows(out, f"{TABLE}/{ROWS}/{digest}", series.names)
            self._add_vector(out, self._vector_tag(entry, series), series.values)
        for tag, value in entry.scalars.items():
            out.value.add(tag=tag, simple_value=value)
        for tag, counts in zip(entry.drawn_tags, entry.drawn, strict=True):
            out.value.add(tag=tag, histo=histogram_proto(counts, entry.bucket_limits))
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
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(values))])
        tensor = TensorProto(dtype=DT_FLOAT, tensor_shape=shape, tensor_content=content)
        metadata = None if tag in self._explained else self._metadata(tag)
        out.value.add(tag=tag, tensor=tensor, metadata=metadata)

    def _metadata(self, tag: str) -> Any:
        self._explained.add(tag)
        plugin = SummaryMetadata.PluginData(plugin_name=PLUGIN)
        return SummaryMetadata(plugin_data=plugin, data_class=DATA_CLASS_TENSOR)


class _Tags:
    """A tuple as a part of a key: equal if it is the same object, or equals; its hash looks at its length only.

    To hash a thousand tags at every step would take as long as to write their numbers.
    """

    __slots__ = ("_tags",)

    def __init__(self, tags: tuple[Any, ...]) -> None:
        self._tags = tags

    def __hash__(self) -> int:
        return len(self._tags)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tags) and (self._tags is other._tags or self._tags == other._tags)


def histogram_proto(counts: NDArray[np.float64], limits: NDArray[np.float64]) -> Any:
    """The raw-histogram form of counts over fixed edges: the occupied buckets, and one for each gap between them.

    Args:
        counts: [buckets].
        limits: right edges, ascending [buckets].

    Example:
        >>> proto = histogram_proto(np.array([0.0, 2.0, 0.0]), np.array([0.0, 1.0, 2.0]))
        >>> proto.num, list(proto.bucket_limit), list(proto.bucket)
        (2.0, [0.0, 1.0], [0.0, 2.0])
    """
    occupied = np.flatnonzero(counts)
    if len(occupied) == 0:
        return HistogramProto(min=0.0, max=0.0, num=0.0, sum=0.0, sum_squares=0.0, bucket_limit=[0.0], bucket=[0.0])
    # An empty bucket before an occupied one gives it its left edge, and stands for the whole gap: values of both signs
    # leave some two hundred buckets around zero empty.
    kept = np.unique(np.concatenate([np.maximum(occupied - 1, 0), occupied]))
    left = limits[np.maximum(occupied - 1, 0)]
    middle = (left + limits[occupied]) / 2
    with np.errstate(over="ignore"):
        total = float((counts[occupied] * middle).sum())
        squares = float((counts[occupied] * np.square(middle)).sum())
    return HistogramProto(
        min=float(left[0]),
        max=float(limits[occupied[-1]]),
        num=float(counts.sum()),
        sum=total,
        sum_squares=squares,
        bucket_limit=limits[kept].tolist(),
        bucket=counts[kept].tolist(),
    )
