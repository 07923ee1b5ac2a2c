"""Step view: an owned, read-only snapshot of a finished step; every statistic is a pure function of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.row_index import Indices, RowIndex, as_indices
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.read_only import ReadOnlyDict
from lightning_hooks.rules.statistics import quantile_of
from lightning_hooks.stats.histogram import BUCKETS, quantile
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.pairs import PAIR_STATS, NoiseAverage, cosine, micro_cosine
from lightning_hooks.stats.schema import COUNT, M2, MAX, MEAN, MIN
from lightning_hooks.stats.statistics import MAGNITUDE_STATS, STATISTICS, compute, ratio

Array = NDArray[np.float64]
STAGE_PREFIX: Final = {"train": "", "validate": "val_", "test": "test_", "predict": "predict_"}
"""What goes before the tags of each stage, after the monitor's own prefix."""
NOTHING: Final = RowIndex()


class Series(NamedTuple):
    """One statistic of one tensor for all its rows.

    Args:
        tensor: `grad`, `output[0]` …
        stat: `norm`, `p99`, or `count`.
        names: dotted names of the rows; the same object at every step with the same rows.
        values: float64 [rows]; NaN where nothing was measured.
        measured: bool [rows].
    """

    tensor: str
    stat: str
    names: tuple[str, ...]
    values: Array
    measured: NDArray[np.bool_]


def squares(moments: Array) -> Array:
    """The sum of squares of every row, float64 [rows], from moments [rows, 9]."""
    with np.errstate(over="ignore", invalid="ignore"):
        square: Array = moments[:, M2] + moments[:, COUNT] * np.square(moments[:, MEAN])
        return square


def _none(*shape: int) -> Array:
    array = np.empty(shape)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class StepView:
    """A step of training, or a whole run of another stage, as it ended.

    Its arrays and mappings are its own and read-only: nothing in it changes when the next step is measured, so it may be kept.
    It is the same on every rank, except for reports of transforms that each rank makes of its own gradients.

    Args:
        step: the x-axis of `self.log`.
        stage: `train`, `validate`, `test` or `predict`.
        wall_time: when the step ended, in seconds since 1970.
        rows: what each row is; the same object as long as the monitor's plan is.
        moments: float64 [rows, 9], merged over calls, micro-batches and ranks, without the loss scale; a count of 0 where
            nothing was measured. The columns are those of `lightning_hooks.stats.moments`.
        summaries: the global numbers and the reports of transforms, tag to value.
        due: the schedules that were due.
        histograms: counts of the log2 buckets, float64 [rows that keep them, buckets]; see `histogram`.
        pairs: sums over pairs of gradients, float64 [rows, 5]; empty where no rule asks for a statistic of pairs.
        noise: averages behind the noise scale, float64 [rows, 2]; empty as `pairs`.
        users: values of your own statistics by (row, name).
        ranks: how many were merged.

    Example:
        >>> StepView(3, summaries={"hooks/grad_norm": 2.0}).summaries["hooks/grad_norm"]
        2.0
    """

    step: int
    stage: str = "train"
    wall_time: float = 0.0
    rows: RowIndex = NOTHING
    moments: Array = field(default_factory=lambda: _none(0, MOMENTS), repr=False)
    summaries: Mapping[str, float] = field(default_factory=dict)
    due: Due = frozenset()
    histograms: Array = field(default_factory=lambda: _none(0, BUCKETS), repr=False)
    pairs: Array = field(default_factory=lambda: _none(0, 0), repr=False)
    noise: Array = field(default_factory=lambda: _none(0, 2), repr=False)
    users: Mapping[tuple[int, str], float] = field(default_factory=dict, repr=False)
    ranks: int = 1

    def __post_init__(self) -> None:
        # Consumers share the view: none may change what the next one sees, and what the producer keeps may change.
        for name in ("summaries", "users"):
            object.__setattr__(self, name, ReadOnlyDict(getattr(self, name)))

    def stat(self, tensor: str, stat: str) -> Series:
        """Any statistic of all rows of a tensor, whether a rule asked for it or not.

        Args:
            tensor: as a rule wrote it: `grad`, `output[0]`.
            stat: a statistic, `count`, or the name of one of your own.

        Returns:
            Names, float64 values [n] and bool `measured` [n] of the n rows and groups of this tensor, in the order of the row
            index.

        Raises:
            RuleError: no row is of this tensor, or what the statistic is made of was not measured.
        """
        indices, names = self.rows.of(tensor)
        if not names:
            raise RuleError(f"stat: no row is of {tensor!r}; there is {', '.join(dict.fromkeys(self.rows.tensors)) or 'none'}")
        values = self.values(stat, indices)
        return Series(tensor, stat, names, values, self._are_measured(stat, indices, values))

    def values(self, stat: str, rows: Indices | Sequence[int]) -> Array:
        """A statistic of some rows; NaN where nothing was measured.

        Args:
            stat: as in `stat`.
            rows: their indices: an array int [n], or any sequence of integers.

        Returns:
            float64 [n].

        Raises:
            RuleError: what the statistic is made of was not measured, or these are no indices.
        """
        rows = as_indices(rows)
        if stat == "count":
            counts: Array = self.moments[rows, COUNT]
            return counts
        if stat in STATISTICS:
            if stat in MAGNITUDE_STATS and not self.rows.magnitudes:
                raise RuleError(f"stat: {stat!r} is not measured unless a rule asks for it or for another of {MAGNITUDE_STATS}")
            return compute(stat, self.moments[rows])
        if stat == "ratio":
            params = self.moments[self._param_rows(rows)]
            return ratio(compute("norm", self.moments[rows]), compute("norm", params))
        if stat in PAIR_STATS:
            return self._of_pairs(stat, rows)
        q = quantile_of(stat)
        if q is not None:
            return quantile(self.histogram(rows), q, self.moments[rows, MIN], self.moments[rows, MAX])
        if not any(name == stat for _, name in self.users) and not self._is_asked(stat):
            raise RuleError(f"stat: {stat!r} is not a statistic of the moments, and no rule asks for it")
        return np.array([self.users.get((row, stat), np.nan) for row in rows.tolist()], dtype=np.float64)

    def histogram(self, rows: Indices | Sequence[int]) -> Array:
        """The counts of log2 buckets of some rows; their edges are `lightning_hooks.stats.histogram.bucket_edges()`.

        Args:
            rows: their indices: an array int [n], or any sequence of integers.

        Returns:
            float64 [n, buckets]; of a group the sum over its members.

        Raises:
            RuleError: one of them keeps none, or these are no indices.
        """
        rows = as_indices(rows)
        index, members = self.rows.histogram_index, self.rows.members
        try:
            if not members:
                kept: Array = self.histograms[[index[row] for row in rows.tolist()]]
                return kept
            parts = [[index[each] for each in members.get(row, (row,))] for row in rows.tolist()]
        except KeyError as error:
            row = int(error.args[0])
            raise RuleError(
                f"stat: {self.rows.tensors[row]} of {self.rows.names[row]} keeps no histogram; ask for 'histogram' or a "
                "quantile of it in a rule"
            ) from None
        return np.stack([self.histograms[each].sum(0) for each in parts])

    def _are_measured(self, stat: str, rows: Indices, values: Array) -> NDArray[np.bool_]:
        """Of which rows the step has a statistic, given its values: a NaN of the others is none that was measured."""
        measured: NDArray[np.bool_] = self.moments[rows, COUNT] > 0
        if stat in PAIR_STATS:  # needs a second gradient
            measured &= ~np.isnan(values)
        elif stat == "ratio":
            measured &= self.moments[self._param_rows(rows), COUNT] > 0
        elif stat != "count" and stat not in STATISTICS and quantile_of(stat) is None:
            measured &= np.array([(row, stat) in self.users for row in rows.tolist()], dtype=np.bool_)
        return measured

    def _param_rows(self, rows: Indices) -> list[int]:
        return [self._param_row(row) for row in rows.tolist()]

    def _param_row(self, row: int) -> int:
        found = self.rows.param_row_of.get(row)
        if found is None and self.rows.tensors[row] == "update":
            indices, names = self.rows.of("param")
            if self.rows.names[row] in names:
                found = int(indices[names.index(self.rows.names[row])])
        if found is None:
            raise RuleError(
                f"stat: 'ratio' is of an update and its parameter; {self.rows.tensors[row]} of {self.rows.names[row]} has none"
            )
        return found

    def _of_pairs(self, stat: str, rows: Indices) -> Array:
        pair_rows, members = {*self.rows.pair_rows}, self.rows.members
        kept = pair_rows | {group for group, each in members.items() if not pair_rows.isdisjoint(each)}
        missing = next((row for row in rows.tolist() if row not in kept), None)
        if missing is not None:
            raise RuleError(
                f"stat: {self.rows.tensors[missing]} of {self.rows.names[missing]} keeps no pairs of gradients; ask for "
                f"{stat!r} of it in a rule"
            )
        if stat == "cosine":
            return cosine(self.pairs[rows])
        if stat == "micro_cosine":
            # The squared norm of the sum over all micro-batches; what the step has is averaged over ranks.
            return micro_cosine(self.pairs[rows], squares(self.moments[rows]) * float(self.ranks) ** 2)
        average = NoiseAverage(0)
        average.values = self.noise
        return np.array([average.scale(np.array(members.get(row, (row,)))) for row in rows.tolist()])

    def _is_asked(self, stat: str) -> bool:
        return any(stat in stats for each in (*self.rows.alike, *self.rows.groups) for _, stats in each.requests)
