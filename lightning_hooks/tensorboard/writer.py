"""Writing into the logger's own event file.

Two event files that grow in one directory lose steps with TensorBoard's Python loader, so nothing is written beside the
logger: its `SummaryWriter` hands over its file writer.
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

from lightning_hooks.kept import Kept, kept_on
from lightning_hooks.private import attribute
from lightning_hooks.tensorboard.appending import Append, appender
from lightning_hooks.tensorboard.charts import categories, layout_summary
from lightning_hooks.tensorboard.events import EventBuilder
from lightning_hooks.tensorboard.images import feature_map_grid, image_summary
from lightning_hooks.tensorboard.messages import event_bytes
from lightning_hooks.tensorboard.projector import write_projector

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.tensorboard import SummaryWriter

    from lightning_hooks.records.layout import LogEntry


@dataclass(eq=False)
class _Announced(Kept):
    """What all who write with one `SummaryWriter` have said about their charts and rows: the last one says it for all.

    Args:
        categories: of Custom Scalars, by title.
        rows: by prefix and name.
    """

    categories: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)


def is_tensorboard(experiment: Any) -> TypeGuard[SummaryWriter]:
    """Whether a logger's experiment is torch's `SummaryWriter`."""
    from torch.utils.tensorboard import SummaryWriter  # here, so that reading a run does not load torch

    return isinstance(experiment, SummaryWriter)


class RunWriter:
    """Writes steps into the event file of a `SummaryWriter`.

    Args:
        writer: of the logger.
    """

    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer
        self._file_writer: Any = None
        self._builder = EventBuilder()
        self._append: Append  # of the open file, since the first call of `_current`

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
    ) -> None:
        """Write what is watched as a text summary, the layout of the charts, and what is known of the rows.

        The layout has the charts of all that write into this event file; so have the rows.

        Args:
            markdown: a table of what the rules match.
            pairs: (tensor, statistic) as they will be logged.
            step: of the coming batch.
            prefix: of every tag.
            transforms: whether there are reports of transforms to draw.
            about: by name of the row `type` (of its module), `shape`, and `order`, the turn in which the module ran.
            indices: the row indices of the step views, as JSON.
        """
        summary = Summary()
        tag = f"{prefix}hooks/taps"
        plugin = text_metadata.create_summary_metadata(display_name=tag, description="")
        summary.value.add(tag=tag, tensor=make_tensor_proto([markdown.encode()]), metadata=plugin)
        announced = kept_on(self._writer, _Announced)
        known = announced.categories
        for category in categories(pairs, prefix, transforms=transforms):
            charts = known.setdefault(category.title, category).chart
            titles = {chart.title for chart in charts}
            charts.extend(chart for chart in category.chart if chart.title not in titles)
        summary.MergeFrom(layout_summary(known.values()))
        if about:
            rows = announced.rows.setdefault(prefix, {})
            rows.update({name: {**rows.get(name, {}), **known} for name, known in about.items()})
            summary.MergeFrom(self._builder.about(rows, prefix))
        for index in indices:
            summary.MergeFrom(self._builder.index(index))
        self._add(summary, step)

    def writes_to(self, experiment: Any) -> bool:
        """Whether this is of that `SummaryWriter`."""
        return self._writer is experiment

    def write(self, entry: LogEntry) -> None:
        """Write a step as one event, which is in the file when this returns."""
        self._current()
        self._append(event_bytes(entry.wall_time or time.time(), entry.step, self._builder.serialized(entry)))

    def write_tensor(self, name: str, tensor: Tensor, step: int, samples: Sequence[int] | None = None) -> None:
        """Show a batch: [N, D] in the projector, [N, C, L] and [N, C, H, W] as an image; others have no picture.

        Args:
            name: what the tabs call it.
            tensor: [N, …].
            step: the x-axis.
            samples: labels of the points.

        Raises:
            RuleError: it cannot be shown.
            OSError: it could not be written.
        """
        if tensor.dim() == 2:
            labels = None if samples is None or len(samples) < len(tensor) else {"sample": list(samples[: len(tensor)])}
            write_projector(self._writer.log_dir, name, tensor, labels=labels)
        elif tensor.dim() in (3, 4):
            self._add(image_summary(name, feature_map_grid(tensor)), step)

    def _current(self) -> Any:
        """The open file; a new one (after a `close`) gets all explanations again."""
        file_writer = _file_writer_of(self._writer)
        if file_writer is not self._file_writer:
            self._file_writer = file_writer
            self._builder = EventBuilder()
            self._append = appender(file_writer)
        return file_writer

    def _add(self, summary: Any, step: int) -> None:
        self._current().add_event(Event(summary=summary), step)


def _file_writer_of(writer: SummaryWriter) -> Any:
    """The open file of a writer, which opens a new one after a `close`."""
    lost = "after a close of the writer its new file begins with a scalar 'hooks/opened'"
    opened = attribute(writer, "SummaryWriter._get_file_writer", MethodType, lost)
    if opened is not None:
        return opened()
    if writer.file_writer is None:
        writer.add_scalar("hooks/opened", 1.0, 0)
    return writer.file_writer
