"""One step as one event: the table, the scalars and the histograms in a single summary.

The table form is one vector per (tensor, statistic), about five bytes a value. TensorBoard keeps the first metadata of a tag
across all files of a run, so a vector's tag carries a hash of its list of rows, and the list is a summary of its own, written
at the start of every file: after a resume with other rows no row gets another's name.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_STRING

from lightning_hooks.tensorboard import histograms
from lightning_hooks.tensorboard._record import Columns, Record, Series
from lightning_hooks.tensorboard.template import Template

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
        self._hashes: dict[int, tuple[tuple[str, ...], str]] = {}
        self._explained: set[str] = set()
        # Of a kind: the template, once there is one, and what the kind holds the identity of.
        self._templates: dict[tuple[Any, ...], tuple[Template | None, Any]] = {}
        self._first: dict[tuple[str, ...], tuple[str, ...]] = {}  # of equal tags of merged rows those that came first
        self._tags: tuple[tuple[str, ...], tuple[str, ...]] = (), ()  # the last ones, and their first

    def row_list(self, names: tuple[str, ...]) -> str:
        """The hash of a list of rows, computed once for each object."""
        known = self._hashes.get(id(names))
        if known is None:
            digest = hashlib.blake2b("\n".join(names).encode(), digest_size=4).hexdigest()
            known = self._hashes[id(names)] = (names, digest)  # holding the tuple keeps its id taken
        return known[1]

    def serialized(self, record: Record) -> bytes:
        """Everything of one step as bytes: the first of a kind is built as a message, from the second on a template is filled.

        Most fits have one event that is alone of its kind, the first, whose template would only take memory.

        Args:
            record: what the step logs.
        """
        columns, merged = record.columns, record.merged
        tags = None if merged is None else self._same(merged.tags)
        key = self._kind(record, columns, tags)
        if key not in self._templates:
            if len(self._templates) >= _TEMPLATES:  # what is measured changes from step to step
                self._templates.clear()
                self._first.clear()
            summary: bytes = self.summary(record).SerializeToString()
            self._templates[key] = None, (columns.heads, tags)
            return summary
        template, held = self._templates[key]
        if template is None:
            template = self._template(record, columns)
            self._templates[key] = template, held
        numbers = np.array([*record.summaries.values()], dtype=np.float64)
        if merged is not None:
            numbers = np.concatenate([merged.numbers, numbers])
        filled = template.fill(columns.values, numbers)
        if record.histograms:
            drawn = record.drawn
            filled += histograms.serialized(drawn.tags, drawn.counts, record.bucket_limits)
        return filled

    def _same(self, tags: tuple[str, ...]) -> tuple[str, ...]:
        """One object for equal tags: to hash a thousand of them would take as long as to write their numbers."""
        last, first = self._tags
        if tags is not last:
            first = self._first.setdefault(tags, tags)
            self._tags = tags, first
        return first

    def _kind(self, record: Record, columns: Columns, tags: tuple[str, ...] | None) -> tuple[Any, ...]:
        """Equal for steps whose events differ in their numbers only."""
        rows: Any = columns.measured.tobytes() if tags is None else id(tags)
        return record.prefix, id(columns.heads), rows, tuple(record.summaries)

    def _template(self, record: Record, columns: Columns) -> Template:
        vectors = [(self._vector_tag(record, series), len(series.names)) for series in record.series]
        there = columns.measured.copy()
        for head in columns.heads:
            if head.stat == "count" or record.rolled_up is not None:
                there[head.place] = False
        return Template(vectors, list(record.scalars), np.flatnonzero(there).tolist())

    def _vector_tag(self, record: Record, series: Series) -> str:
        return f"{TABLE}/{record.prefix}{series.tensor}/{series.stat}/{self.row_list(series.names)}"

    def summary(self, record: Record) -> Summary:
        """Everything of one step.

        Args:
            record: what the step logs.
        """
        out = Summary()
        for series in record.series:
            digest = self.row_list(series.names)
            self._add_rows(out, f"{TABLE}/{ROWS}/{digest}", series.names)
            self._add_vector(out, self._vector_tag(record, series), series.values)
        for tag, value in record.scalars.items():
            out.value.add(tag=tag, simple_value=value)
        for tag, counts in record.histograms:
            out.value.add(tag=tag, histo=histogram_proto(counts, record.bucket_limits))
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
