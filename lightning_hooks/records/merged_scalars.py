"""The scalars of a stage in which rows are merged along the module tree."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.plan.row_index import Indices, RowIndex, StatColumn, joined
from lightning_hooks.records.levels import rows_of_blocks
from lightning_hooks.stats.row_statistics import StatisticRequests, StepStatistics
from lightning_hooks.stats.statistics import STATISTICS, ratio

Array = NDArray[np.float64]


class _Ratios(NamedTuple):
    """The ratios of blocks, which are computed from norms.

    Args:
        span: the positions of their values in a step's statistics.
        updates: for each block a row or union, that of the updates.
        params: the same of the parameters.
    """

    span: slice
    updates: Indices
    params: Indices


class MergedScalars:
    """One scalar for each block of the module tree, then one for each row that is never merged.

    Args:
        index: the row index of the views.
        levels: the level of each tensor and statistic; a statistic without a level is not written.
        pinned: the names of rows that are never merged. Groups and statistics that cannot be merged are not merged either.
        requests: takes the requests of the blocks.
        columns: the statistics of the stage, each with the positions of its rows among the requests.
    """

    def __init__(
        self,
        index: RowIndex,
        levels: Mapping[tuple[str, str], int],
        pinned: frozenset[str],
        requests: StatisticRequests,
        columns: Iterable[tuple[StatColumn, slice]],
    ) -> None:
        self._index, self._requests = index, requests
        self._ratios: list[_Ratios] = []
        merged_tags: list[str] = []
        unmerged_tags: list[str] = []
        unmerged: list[Indices] = []
        start = requests.size
        for column, span in columns:
            level = levels.get((column.tensor, column.stat))
            is_mergeable = column.stat in STATISTICS or column.stat == "ratio"
            is_unmerged = [
                (level is not None and not is_mergeable) or name in pinned or row in index.members
                for name, row in zip(column.names, column.rows.tolist(), strict=True)
            ]
            unmerged.append(np.arange(span.start, span.stop)[is_unmerged])
            unmerged_tags += [_tag(column, name) for name in itertools.compress(column.names, is_unmerged)]
            if level is not None and is_mergeable:
                merged_tags += [_tag(column, name) for name in self._merge(column, level)]
        self._merged_tags = tuple(merged_tags)
        self._merged = requests.since(start)
        self._tags = (*merged_tags, *unmerged_tags)
        self._positions = joined([np.arange(start, requests.size), *unmerged])

    def _merge(self, column: StatColumn, level: int) -> Iterable[str]:
        """Request the statistic of each block; returns the names of the blocks."""
        union_of, param_row_of = self._requests.union, self._index.param_row_of
        blocks = rows_of_blocks(column, level, self._index.members)
        unions = np.array([union_of(rows) for rows in blocks.values()], dtype=np.intp)
        span = self._requests.add(column.stat, unions)
        if column.stat == "ratio":
            of_params = [union_of([param_row_of.get(row, row) for row in rows]) for rows in blocks.values()]
            self._ratios.append(_Ratios(span, unions, np.array(of_params, dtype=np.intp)))
        return blocks

    def fill(self, step: StepStatistics, are_measured: NDArray[np.bool_]) -> tuple[tuple[str, ...], Array]:
        """The tags and the values of the scalars of a step.

        If every row was measured and every row is merged, the tags are the same tuple at every step, because a writer
        recognises this object faster than an equal tuple.

        Args:
            step: the statistics of the step, with the values of the columns; those of ratios of blocks are written here.
            are_measured: whether each value was measured; written too, unless every row was.
        """
        if self._ratios:
            norms = step.norms()
        for span, updates, params in self._ratios:
            step.values[span] = ratio(norms[updates], norms[params])
            if not step.complete:
                are_measured[span] &= step.measured[params]
        if step.complete and len(self._tags) == len(self._merged_tags):
            return self._merged_tags, step.values[self._merged]
        values, measured = step.values.take(self._positions), are_measured.take(self._positions)
        scalars = dict(itertools.compress(zip(self._tags, values.tolist(), strict=True), measured.tolist()))
        return tuple(scalars), np.array([*scalars.values()], dtype=np.float64)


def _tag(column: StatColumn, name: str) -> str:
    return f"{column.tensor}_{column.stat}/{name}"
