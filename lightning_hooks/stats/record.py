"""One logged step of a monitor: what is written, what `latest` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.histogram import bucket_edges

Array = NDArray[np.float64]
BUCKET_LIMITS: Array = bucket_edges()[1:]


class Series(NamedTuple):
    """One statistic of one tensor for all its rows.

    Args:
        tensor: `grad`, `output[0]` …
        stat: `norm`, `p99`, or `count`.
        names: dotted names of the rows; the same object at every step with the same rows.
        values: float64 [rows]; NaN where nothing was measured, and then the count is 0.
        measured: bool [rows].
    """

    tensor: str
    stat: str
    names: tuple[str, ...]
    values: Array
    measured: NDArray[np.bool_]


class Head(NamedTuple):
    """What a series is of, and where its values lie.

    Args:
        tensor: as in `Series`.
        stat: as in `Series`.
        names: as in `Series`.
        place: in the values of all.
    """

    tensor: str
    stat: str
    names: tuple[str, ...]
    place: slice


class Columns(Sequence[Series]):
    """The series of a step in one array; each is made when it is asked for, and most steps are only written.

    Args:
        heads: one for each; the same object at every step with the same series.
        values: float64, those of all series one after the other.
        measured: which of these there are.
    """

    def __init__(self, heads: tuple[Head, ...], values: Array, measured: NDArray[np.bool_]) -> None:
        self.heads = heads
        self.values = values
        self.measured = measured

    @classmethod
    def of(cls, series: Sequence[Series]) -> Columns:
        """The same series in one array."""
        if not series:
            return cls((), np.empty(0), np.empty(0, dtype=np.bool_))
        ends = np.cumsum([len(s.names) for s in series], dtype=np.intp).tolist()
        heads = tuple(Head(*s[:3], slice(end - len(s.names), end)) for s, end in zip(series, ends, strict=True))
        return cls(heads, np.concatenate([s.values for s in series]), np.concatenate([s.measured for s in series]))

    def __len__(self) -> int:
        return len(self.heads)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._made(head) for head in self.heads[index]]
        return self._made(self.heads[index])

    def _made(self, head: Head) -> Series:
        return Series(head.tensor, head.stat, head.names, self.values[head.place], self.measured[head.place])


class Histograms(Sequence[tuple[str, Array]]):
    """Tags with their counts, in one array.

    Args:
        tags: of all.
        counts: float64 [tags, BUCKETS].
    """

    def __init__(self, tags: Sequence[str], counts: Array) -> None:
        self.tags = tags
        self.counts = counts

    @classmethod
    def of(cls, histograms: Sequence[tuple[str, Array]]) -> Histograms:
        """The same in one array."""
        counts = np.stack([counts for _, counts in histograms]) if histograms else np.empty((0, len(BUCKET_LIMITS)))
        return cls(tuple(tag for tag, _ in histograms), counts)

    def __len__(self) -> int:
        return len(self.tags)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(zip(self.tags[index], self.counts[index], strict=True))
        return self.tags[index], self.counts[index]


class RolledUp(Mapping[str, float]):
    """The scalar form of merged rows; most steps are only written, and need no dictionary.

    Args:
        tags: without prefix; the same object at every step, where all rows have elements and none is pinned.
        numbers: float64, in the same order.

    Example:
        >>> RolledUp(("grad_norm/a", "grad_norm/b"), np.array([1.0, 2.0]))["grad_norm/b"]
        2.0
    """

    __slots__ = ("_by_tag", "numbers", "tags")

    def __init__(self, tags: tuple[str, ...], numbers: Array) -> None:
        self.tags = tags
        self.numbers = numbers
        self._by_tag: dict[str, float] | None = None

    @classmethod
    def of(cls, rolled_up: Mapping[str, float]) -> RolledUp:
        """The same in one array."""
        return cls(tuple(rolled_up), np.array([*rolled_up.values()], dtype=np.float64))

    def __getitem__(self, tag: str) -> float:
        if self._by_tag is None:
            self._by_tag = dict(zip(self.tags, self.numbers.tolist(), strict=True))
        return self._by_tag[tag]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tags)

    def __len__(self) -> int:
        return len(self.tags)


@dataclass(frozen=True)
class StepRecord:
    """Everything that one step logs.

    Args:
        step: the x-axis of `self.log`.
        prefix: put before every tag.
        series: every statistic that was due, complete, with a `count` series for each tensor.
        summaries: the global numbers and the reports of transforms: tag to value.
        rolled_up: tag to value of the scalar form where rows were merged along the module tree; None where they all fit.
        histograms: tag to counts.
        wall_time: when the step ended, in seconds since 1970; 0 where nobody noted it.
    """

    step: int
    prefix: str = ""
    series: Sequence[Series] = ()
    summaries: Mapping[str, float] = field(default_factory=dict)
    rolled_up: Mapping[str, float] | None = None
    histograms: Sequence[tuple[str, Array]] = ()
    wall_time: float = 0.0
    bucket_limits: Array = field(default_factory=lambda: BUCKET_LIMITS, repr=False)

    @property
    def columns(self) -> Columns:
        """The series in one array."""
        return self.series if isinstance(self.series, Columns) else Columns.of(self.series)

    @property
    def merged(self) -> RolledUp | None:
        """The merged rows in one array; None where none are merged."""
        rows = self.rolled_up
        return rows if rows is None or isinstance(rows, RolledUp) else RolledUp.of(rows)

    @property
    def drawn(self) -> Histograms:
        """The histograms in one array."""
        return self.histograms if isinstance(self.histograms, Histograms) else Histograms.of(self.histograms)

    @property
    def scalars(self) -> dict[str, float]:
        """The scalar form: at most `max_scalars` values and the global numbers, by tag."""
        rows = self.rows() if self.rolled_up is None else self.rolled_up
        return {f"{self.prefix}{tag}": value for tag, value in {**rows, **self.summaries}.items()}

    @property
    def latest(self) -> dict[str, float]:
        """Every row of the table and the global numbers, by tag."""
        return {f"{self.prefix}{tag}": value for tag, value in {**self.rows(), **self.summaries}.items()}

    def rows(self) -> dict[str, float]:
        """Every measured row, by tag without prefix."""
        return {
            f"{series.tensor}_{series.stat}/{name}": value
            for series in self.series
            if series.stat != "count"
            for name, value, measured in zip(series.names, series.values.tolist(), series.measured.tolist(), strict=True)
            if measured
        }
