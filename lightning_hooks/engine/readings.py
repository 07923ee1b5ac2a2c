"""What the table of a step holds once it is merged over ranks: for every row, and for every group of rows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.engine.plan import Plan
from lightning_hooks.stats.histogram import shift
from lightning_hooks.stats.moments import COUNT, M2, MEAN, merge_by_index, rescale
from lightning_hooks.stats.pairs import PARTS, SMALL, SUMS
from lightning_hooks.stats.table import Table

Array = NDArray[np.float64]
_NONE: Array = np.empty((0, 0))


class Readings:
    """The merged table of a step, on the CPU, until the next write into it.

    Args:
        plan: whose rows they are.
        table: which holds them; all ranks must ask together.
        state: of the table, flat, merged over ranks.
        scale: the loss scale by which gradients of module tensors are divided.
    """

    def __init__(self, plan: Plan, table: Table, state: Array, scale: Array | None = None) -> None:
        self._slots = table.histogram_slots
        self._groups = {group.index: group.members for group in plan.groups} if plan.groups else {}
        if scale is not None and float(scale) != 1.0:
            state = state.copy()
            moments, histograms, _, pairs = table.sections.split(torch.from_numpy(state))
            self._unscale(plan, moments, histograms, pairs, float(scale))
        self.users: dict[tuple[int, str], float] = {}
        self.pairs: Array = _NONE
        if table.only_moments:
            self.moments, self.histograms = table.sections.moments_of(state), _NONE
        else:
            self._read_more(plan, table, state)
        if plan.groups:
            self._merge_groups(plan)

    def _read_more(self, plan: Plan, table: Table, state: Array) -> None:
        self.moments, self.histograms, sums, pairs = table.sections.split(state)
        if len(pairs):
            self.pairs = np.zeros((len(plan.rows) + len(plan.groups), SUMS))
            self.pairs[list(table.pair_rows)] = pairs
        self.users = table.metric_values(self.moments[:, COUNT])
        self._read_functions(table, sums)

    def _merge_groups(self, plan: Plan) -> None:
        members = [i for group in plan.groups for i in group.members]
        place = [group.index - len(plan.rows) for group in plan.groups for _ in group.members]
        merged = merge_by_index(torch.from_numpy(self.moments[members]), torch.tensor(place), len(plan.groups))
        self.moments = np.concatenate([self.moments, merged.numpy()])
        if len(self.pairs):
            np.add.at(self.pairs, np.array(place) + len(plan.rows), self.pairs[members])
            for group in plan.groups:  # the number of parts is that of each member, not their sum
                self.pairs[group.index, PARTS] = self.pairs[list(group.members), PARTS].max(initial=0.0)

    @property
    def squares(self) -> Array:
        """The sum of squares of every row and group."""
        with np.errstate(invalid="ignore"):
            m = self.moments
            square: Array = m[:, M2] + m[:, COUNT] * np.square(m[:, MEAN])
            return square

    def histograms_of(self, indices: NDArray[np.intp]) -> Array:
        """The log2 buckets of rows and groups [indices, BUCKETS]; they stay when the table is written again.

        Args:
            indices: of them.
        """
        if not self._groups:
            return self.histograms[list(map(self._slots.__getitem__, indices.tolist()))]
        slots = [[self._slots[row] for row in self._groups.get(index, (index,))] for index in indices.tolist()]
        return np.stack([self.histograms[each].sum(0) for each in slots])

    def _unscale(self, plan: Plan, moments: Tensor, histograms: Tensor, pairs: Tensor, scale: float) -> None:
        rows = plan.flowing
        moments[rows] = rescale(moments[rows], 1.0 / scale)
        pairs[:, SMALL] /= scale * scale
        for row in rows:
            if row in self._slots:
                # A loss scale is a power of two unless somebody chose another: whole buckets move.
                histograms[self._slots[row]] = shift(histograms[self._slots[row]], -round(float(np.log2(scale))))

    def _read_functions(self, table: Table, sums: Array) -> None:
        named = {(row, name): sums[place] for row, place, name in table.users.functions}
        for key, pair in named.items():
            if pair[1] > 0:
                self.users[key] = float(pair[0] / pair[1])
        names = {name for _, name in named}
        for group, members in self._groups.items():
            for name in names:
                kept = [named[(i, name)] for i in members if (i, name) in named]
                total = np.sum(kept, axis=0) if kept else None
                if total is not None and total[1] > 0:
                    self.users[(group, name)] = float(total[0] / total[1])

    def of_user(self, name: str, rows: NDArray[np.int64]) -> Array:
        """A user's statistic of some rows; NaN where it was not measured."""
        return np.array([self.users.get((int(row), name), np.nan) for row in rows])
