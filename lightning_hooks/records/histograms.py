"""The histograms of a step: each is of a row, or of a block whose rows are added up."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.plan.row_index import Indices, joined
from lightning_hooks.records.step_view import StepView
from lightning_hooks.stats.histogram import bucket_edges
from lightning_hooks.stats.statistics import Derived

Array = NDArray[np.float64]
BUCKET_LIMITS: Array = bucket_edges()[1:]
NOTHING_DRAWN: Array = np.empty((0, len(BUCKET_LIMITS)))


class Histograms:
    """Those of one set of due schedules.

    Args:
        parts: the rows of each, by its whole tag.

    Attributes:
        tags: of all of them.
    """

    def __init__(self, parts: Mapping[str, Indices]) -> None:
        self.tags = tuple(parts)
        self._parts = parts
        self._all = _in_a_row([*parts.values()])

    def fill(self, view: StepView, derived: Derived, tags: Sequence[str]) -> tuple[tuple[str, ...], Array]:
        """The tags and counts of those of which anything was measured.

        Args:
            view: of the step.
            derived: of the same step: which rows were measured.
            tags: some of its own, in order.
        """
        if not tags:
            return (), NOTHING_DRAWN
        rows, starts = self._all if len(tags) == len(self.tags) else _in_a_row([self._parts[tag] for tag in tags])
        counts = view.histogram(rows)
        if len(rows) > len(tags):
            counts = np.add.reduceat(counts, starts, axis=0)
        if derived.complete:
            return tuple(tags), counts
        there = np.logical_or.reduceat(derived.measured[rows], starts)
        return tuple(itertools.compress(tags, there)), counts[there]


def _in_a_row(parts: list[Indices]) -> tuple[Indices, Indices]:
    """The rows of all parts, and where each part starts among them."""
    return joined(parts), np.cumsum([0, *map(len, parts)], dtype=np.intp)[: len(parts)]
