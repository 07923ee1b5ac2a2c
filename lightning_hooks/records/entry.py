"""What a step writes into loggers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.records.histograms import BUCKET_LIMITS, NO_HISTOGRAMS, RowHistograms
from lightning_hooks.records.step_view import Series
from lightning_hooks.records.table_layout import SeriesHeader

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LogEntry:
    """A step in the form in which loggers write it. Consumers that do not write files read the step view instead.

    Args:
        step: the x-axis.
        prefix: the text before every tag.
        headers: the series of statistics; the same tuple at every step with the same series.
        values: the values of all series, concatenated.
        measured: whether each of these values was measured.
        summaries: the global numbers and the reports of transforms, by tag without prefix.
        merged: the tags without prefix and the values of the scalars if rows are merged along the module tree; None if every
            measured value is a scalar.
        histogram_tags: the tags of the histograms, with prefix.
        histogram_counts: the counts of the histograms [tags, buckets].
        row_histograms: the histograms in the table of an event file, those of every row; by tensor.
        wall_time: the time at which the step ended, in seconds since 1970; 0 for now.
        table: the series in the table of an event file; None if they are the series of statistics.
        table_values: the values of the series in `table`, concatenated.
        facts: the facts of the step that differ from those of the step before, as JSON; empty if there are none.
        monitor: the prefix of the monitor, without that of the stage.
        window: the steps that the entry merges, as JSON; empty for a single step.
    """

    step: int
    prefix: str = ""
    headers: tuple[SeriesHeader, ...] = ()
    values: Array = field(default_factory=lambda: np.empty(0))
    measured: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    summaries: Mapping[str, float] = field(default_factory=dict)
    merged: tuple[tuple[str, ...], Array] | None = None
    histogram_tags: Sequence[str] = ()
    histogram_counts: Array = field(default_factory=lambda: NO_HISTOGRAMS)
    row_histograms: Sequence[RowHistograms] = ()
    wall_time: float = 0.0
    table: tuple[SeriesHeader, ...] | None = None
    table_values: Array = field(default_factory=lambda: np.empty(0))
    facts: str = ""
    monitor: str = ""
    window: str = ""
    bucket_limits: ClassVar[Array] = BUCKET_LIMITS

    @property
    def series(self) -> list[Series]:
        """The series of statistics."""
        return [Series(*header[:3], self.values[header.span], self.measured[header.span]) for header in self.headers]

    @property
    def table_series(self) -> tuple[tuple[SeriesHeader, ...], Array]:
        """The series in the table of an event file, and their values, concatenated."""
        return (self.headers, self.values) if self.table is None else (self.table, self.table_values)

    def without_scalars(self) -> LogEntry:
        """The entry with its table alone."""
        table, values = self.table_series
        return LogEntry(
            self.step,
            self.prefix,
            wall_time=self.wall_time,
            table=table,
            table_values=values,
            row_histograms=self.row_histograms,
            facts=self.facts,
            monitor=self.monitor,
            window=self.window,
        )

    def without_table(self) -> LogEntry:
        """The entry with its scalars and histograms alone."""
        return replace(self, table=(), table_values=np.empty(0), row_histograms=(), facts="", window="")

    @property
    def scalars(self) -> dict[str, float]:
        """All scalars of the step, by tag with prefix."""
        rows = self._rows() if self.merged is None else zip(self.merged[0], self.merged[1].tolist(), strict=True)
        return {f"{self.prefix}{tag}": value for tag, value in itertools.chain(rows, self.summaries.items())}

    @property
    def global_scalars(self) -> dict[str, float]:
        """The scalars of the whole step, of no row, by tag with prefix."""
        return {f"{self.prefix}{tag}": value for tag, value in self.summaries.items()}

    def _rows(self) -> Iterable[tuple[str, float]]:
        for series in self.series:
            if series.stat != "count":
                points = zip(series.names, series.values.tolist(), series.measured.tolist(), strict=True)
                yield from ((f"{series.tensor}_{series.stat}/{name}", value) for name, value, measured in points if measured)
