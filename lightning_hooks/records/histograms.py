"""The histograms of a step: each is the histogram of one row, or the sum over the rows of a block of the module tree."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

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


class Histograms:
    """The histograms that a set of due schedules requests.

    Args:
        rows_by_tag: the rows of each histogram, by its tag with prefix.

    Attributes:
        tags: the tags of all histograms.
    """

    def __init__(self, rows_by_tag: Mapping[str, Indices]) -> None:
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
        for column in columns:
            blocks = {name: [row] for name, row in zip(column.names, column.rows.tolist(), strict=True)}
            if levels.histograms is not None:
                level = levels.histograms.get((column.tensor, column.stat))
                unmerged = {n: rows for n, rows in blocks.items() if n in levels.pinned or rows[0] in index.members}
                blocks = {**({} if level is None else rows_of_blocks(column, level, index.members)), **unmerged}
            for name, rows in blocks.items():
                rows_by_tag[f"{prefix}{column.tensor}_histogram/{name}"] = np.array(rows, dtype=np.intp)
        return cls(rows_by_tag)

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
