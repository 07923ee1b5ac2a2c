"""Writes steps into the logger's own event file.

TensorBoard's Python loader loses steps if two event files grow in one folder. We therefore open no second file, but write
through the file writer of the logger's `SummaryWriter`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeGuard

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.util.tensor_util import make_tensor_proto

from lightning_hooks.attached import AttachedState, attached_to
from lightning_hooks.private import attribute
from lightning_hooks.rules.prefix import ROOT
from lightning_hooks.tensorboard.appending import Append, appender
from lightning_hooks.tensorboard.charts import categories, layout_summary
from lightning_hooks.tensorboard.events import EventBuilder
from lightning_hooks.tensorboard.images import feature_map_grid, image_summary
from lightning_hooks.tensorboard.messages import event_bytes
from lightning_hooks.tensorboard.projector import write_projector

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.tensorboard import SummaryWriter

    from lightning_hooks.records.entry import LogEntry


@dataclass(eq=False)
class _Announced(AttachedState):
    """What all who write with one `SummaryWriter` wrote about charts and rows: the last event holds those of all.

    Args:
        categories: the categories of the Custom Scalars tab, by title.
        rows: the facts about rows, by prefix of the monitor and name of the row.
    """

    categories: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)


def is_tensorboard(experiment: Any) -> TypeGuard[SummaryWriter]:
    """Whether a logger's experiment is torch's `SummaryWriter`."""
    # Import torch's writer here, so that reading a run does not load torch.
    from torch.utils.tensorboard import SummaryWriter

    return isinstance(experiment, SummaryWriter)


class StepEventWriter:
    """Writes steps into the event file of a `SummaryWriter`.

    Args:
        writer: the `SummaryWriter` of the logger.
    """

    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer
        self._file_writer: Any = None
        self._builder = EventBuilder()
        self._append: Append  # appends to the open file; set by `_current`

    def write_start(
        self,
        markdown: str,
        pairs: Sequence[tuple[str, str]],
        step: int,
        prefix: str = "",
        *,
        transforms: bool = False,
        about: Mapping[str, Mapping[str, Any]] | None = None,
        indices: Sequence[str] = (),
    ) -> int:
        """Write at the start of a run what the rules match as a text, the layout of the charts, and the facts about the rows.

        TensorBoard shows only the last layout, so the layout and the facts contain those of all monitors that write into this
        event file.

        Args:
            markdown: a table of what the rules match.
            pairs: (tensor, statistic) of the scalars that will be logged.
            step: the step of the coming batch.
            prefix: put before every tag; empty by default.
            transforms: whether to add charts for the reports of transforms.
            about: row name to `type` (class of the module), `shape` and `order` (index in the order of execution).
            indices: the row indices of the step views, as JSON.

        Returns:
            The size of the event in bytes.
        """
        summary = _text_summary(f"{prefix}run/rules", markdown)
        announced = attached_to(self._writer, _Announced)
        written = announced.categories
        for category in categories(pairs, prefix, transforms=transforms):
            charts = written.setdefault(category.title, category).chart
            titles = {chart.title for chart in charts}
            charts.extend(chart for chart in category.chart if chart.title not in titles)
        summary.MergeFrom(layout_summary(written.values()))
        if about:
            rows = announced.rows.setdefault(prefix, {})
            rows.update({name: {**rows.get(name, {}), **facts} for name, facts in about.items()})
            summary.MergeFrom(self._builder.about(rows, prefix))
        for index in indices:
            summary.MergeFrom(self._builder.index(index))
        return self._add(summary, step)

    def writes_to(self, experiment: Any) -> bool:
        """Whether this writer writes through the given `SummaryWriter`."""
        return self._writer is experiment

    def write(self, entry: LogEntry) -> int:
        """Write a step as one event. The event is in the file when `write` returns.

        Returns:
            The size of the event in bytes.
        """
        self._current()
        event = event_bytes(entry.wall_time or time.time(), entry.step, self._builder.serialized(entry))
        self._append(event)
        return len(event)

    def write_text(self, tag: str, markdown: str, step: int) -> int:
        """Write Markdown for the Text tab; returns the size in bytes."""
        return self._add(_text_summary(tag, markdown), step)

    def write_findings(self, summary: Mapping[str, Any], step: int, prefix: str = "") -> int:
        """Write what health rules have found so far, for readers that have the event file and not the files beside it.

        Returns:
            The size of the event in bytes.
        """
        self._current()
        return self._add(self._builder.findings(summary, prefix), step)

    def write_tensor(self, name: str, tensor: Tensor, step: int, samples: Sequence[int] | None = None) -> None:
        """Write a batch for TensorBoard: [N, D] for the projector, [N, C, L] and [N, C, H, W] as an image.

        A tensor with another number of dimensions is ignored.

        Args:
            name: the name under which the tabs show the tensor.
            tensor: [N, …].
            step: the global step.
            samples: labels of the points in the projector; ignored if there are fewer than N.

        Raises:
            RuleError: the tensor has no elements, or complex numbers.
            OSError: a file could not be written.
        """
        if tensor.dim() == 2:
            labels = None if samples is None or len(samples) < len(tensor) else {"sample": list(samples[: len(tensor)])}
            write_projector(self._writer.log_dir, name, tensor, labels=labels)
        elif tensor.dim() in (3, 4):
            self._add(image_summary(name, feature_map_grid(tensor)), step)

    def _current(self) -> Any:
        """The open file writer. If it is new, as after a `close`, its file gets all lists of rows and metadata again."""
        file_writer = _file_writer_of(self._writer)
        if file_writer is not self._file_writer:
            self._file_writer = file_writer
            self._builder = EventBuilder()
            self._append = appender(file_writer)
        return file_writer

    def _add(self, summary: Any, step: int) -> int:
        self._current()
        # Do not pass the event to the logger's thread: a full disk ends the thread, and only the close of the file raises.
        event = Event(summary=summary, step=step, wall_time=time.time()).SerializeToString()
        self._append(event)
        return len(event)


def _text_summary(tag: str, markdown: str) -> Any:
    plugin = text_metadata.create_summary_metadata(display_name=tag, description="")
    summary = Summary()
    summary.value.add(tag=tag, tensor=make_tensor_proto([markdown.encode()]), metadata=plugin)
    return summary


def _file_writer_of(writer: SummaryWriter) -> Any:
    """The open file writer of a `SummaryWriter`, which opens a new one after a `close`."""
    lost = "after a close of the writer its new file begins with a scalar 'watch/run/opened'"
    opened = attribute(writer, "SummaryWriter._get_file_writer", MethodType, lost)
    if opened is not None:
        return opened()
    if writer.file_writer is None:
        writer.add_scalar(f"{ROOT}run/opened", 1.0, 0)
    return writer.file_writer
