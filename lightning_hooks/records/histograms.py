"""The histograms of a step: each is the histogram of one row, or the sum over the rows of a block of the module tree.

The table of an event file has the histogram of every row. TensorBoard's own histograms are limited in number; above the limit
they are those of blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.plan.row_index import Indices, RowIndex, StatColumn, joined
from lightning_hooks.records.levels import Levels, rows_of_blocks
from lightning_hooks.records.step_view import StepView
from lightning_hooks.stats.histogram import bucket_edges
from lightning_hooks.stats.row_statistics import StepStatistics

Array = NDArray[np.float64]
BUCKET_LIMITS: Array = bucket_edges()[1:]
NO_HISTOGRAMS: Array = np.empty((0, len(BUCKET_LIMITS)))


class RowHistograms(NamedTuple):
    """The histograms of a tensor in the table of a step.

    Args:
        tensor: `grad`, `output[0]` …
        names: the names of all rows whose histograms can be due; the same object at every step with the same rows.
        written: the indices into `names` of the rows that this step has, ascending.
        counts: their counts [rows of this step, buckets].
    """

    tensor: str
    names: tuple[str, ...]
    written: Indices
    counts: Array


class Histograms:
    """The histograms that a set of due schedules requests.

    Args:
        rows_by_tag: the rows of each histogram, by its tag with prefix.
        tensors: each tensor with the names of its histograms, in the order of the tags.

    Attributes:
        tags: the tags of all histograms.
    """

    def __init__(self, rows_by_tag: Mapping[str, Indices], tensors: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        self._tensors = tensors
        self.tags = tuple(rows_by_tag)
        self._rows_by_tag = rows_by_tag
        self._all = _concatenate([*rows_by_tag.values()])

    @classmethod
    def of(cls, index: RowIndex, columns: Sequence[StatColumn], levels: Levels, prefix: str) -> Histograms:
        """The histograms of the rows of a stage, or of the blocks that these are merged into.

        Args:
            index: the row index of the views.
            columns: the rows of each tensor whose histograms are due.
            levels: the levels of the module tree at which rows are merged.
            prefix: the text before every tag.
        """
        rows_by_tag: dict[str, Indices] = {}
        tensors: list[tuple[str, tuple[str, ...]]] = []
        for column in columns:
            blocks = {name: [row] for name, row in zip(column.names, column.rows.tolist(), strict=True)}
            if levels.histograms is not None:
                level = levels.histograms.get((column.tensor, column.stat))
                unmerged = {n: rows for n, rows in blocks.items() if n in levels.pinned or rows[0] in index.members}
                blocks = {**({} if level is None else rows_of_blocks(column, level, index.members)), **unmerged}
            # A group of rows can have the name of a row; then the histogram is that of the group.
            tensors.append((column.tensor, column.names if len(blocks) == len(column.names) else tuple(blocks)))
            for name, rows in blocks.items():
                rows_by_tag[f"{prefix}{column.tensor}_histogram/{name}"] = np.array(rows, dtype=np.intp)
        return cls(rows_by_tag, tensors)

    def by_tensor(self, tags: Sequence[str], counts: Array) -> tuple[RowHistograms, ...]:
        """The histograms that `fill` has returned, for the table of an event file.

        Args:
            tags: a subset of `tags` of this object in the same order.
            counts: [tags, buckets].
        """
        if not tags:
            return ()
        chosen = {*tags}
        is_written = np.array([tag in chosen for tag in self.tags], dtype=np.bool_)
        found, start, first = [], 0, 0
        for tensor, names in self._tensors:
            written = np.flatnonzero(is_written[start : start + len(names)])
            if len(written):
                found.append(RowHistograms(tensor, names, written, counts[first : first + len(written)]))
            start, first = start + len(names), first + len(written)
        return tuple(found)

    def fill(self, view: StepView, statistics: StepStatistics, tags: Sequence[str]) -> tuple[tuple[str, ...], Array]:
        """The tags and the counts [tags, buckets] of the histograms of which at least one row was measured.

        Args:
            view: the view of the step.
            statistics: those of the same step, which say which rows were measured.
            tags: the histograms to read, a subset of `tags` of this object in the same order.
        """
        if not tags:
            return (), NO_HISTOGRAMS
        rows, starts = self._all if len(tags) == len(self.tags) else _concatenate([self._rows_by_tag[tag] for tag in tags])
        counts = view.histogram(rows)
        if len(rows) > len(tags):
            counts = np.add.reduceat(counts, starts, axis=0)
        if statistics.complete:
            return tuple(tags), counts
        measured = np.logical_or.reduceat(statistics.measured[rows], starts)
        return tuple(itertools.compress(tags, measured)), counts[measured]


def _concatenate(parts: list[Indices]) -> tuple[Indices, Indices]:
    """The concatenation of arrays of rows, and the position at which each array starts."""
    return joined(parts), np.cumsum([0, *map(len, parts)], dtype=np.intp)[: len(parts)]
