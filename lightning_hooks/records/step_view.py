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
from lightning_hooks.stats.accumulators import BUILT_IN, MOMENTS, Accumulator
from lightning_hooks.stats.schema import COUNT
from lightning_hooks.stats.statistics import MAGNITUDE_STATS, compute, ratio

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
        kept: what rows keep besides moments, by the name of the accumulator: float64 [rows that keep it, columns]; see `state`.
        metrics: values of your own metrics by (row, name); of a view that was read from a file also those of other statistics
            that do not follow from what is kept.
        vectors: numbers of each unit by (row, name), float64 [units], where a rule asks for them with `unit_vectors=True`:
            `abs_max`, `rms`, `mean` and `zero_fraction`.
        ranks: how many were merged.

    Example:
        >>> StepView(3, summaries={"hooks/grad_norm": 2.0}).summaries["hooks/grad_norm"]
        2.0
    """

    step: int
    stage: str = "train"
    wall_time: float = 0.0
    rows: RowIndex = NOTHING
    moments: Array = field(default_factory=lambda: _none(0, MOMENTS.width), repr=False)
    summaries: Mapping[str, float] = field(default_factory=dict)
    due: Due = frozenset()
    kept: Mapping[str, Array] = field(default_factory=dict, repr=False)
    metrics: Mapping[tuple[int, str], float] = field(default_factory=dict, repr=False)
    vectors: Mapping[tuple[int, str], Array] = field(default_factory=dict, repr=False)
    ranks: int = 1

    def __post_init__(self) -> None:
        # Consumers share the view: none may change what the next one sees, and what the producer keeps may change.
        for name in ("summaries", "kept", "metrics", "vectors"):
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
        if stat == "ratio":
            params = self.moments[self._param_rows(rows)]
            return ratio(compute("norm", self.moments[rows]), compute("norm", params))
        accumulator = self._accumulator(stat)
        if accumulator is None:
            return np.array([self.metrics.get((row, stat), np.nan) for row in rows.tolist()], dtype=np.float64)
        has = self._keeping(accumulator, stat, rows)
        values = np.full(len(rows), np.nan)
        values[has] = accumulator.compute(stat, _States(self, rows[has], stat))
        return values

    def state(self, accumulator: str, rows: Indices | Sequence[int]) -> Array:
        """What an accumulator keeps of some rows.

        Args:
            accumulator: its name: `moments`, `histogram`, `pairs`.
            rows: their indices: an array int [n], or any sequence of integers.

        Returns:
            float64 [n, columns]; of a group that of all its members.

        Raises:
            RuleError: one of them does not keep it, or these are no indices.
        """
        return self._state(accumulator, as_indices(rows), accumulator)

    def _state(self, name: str, rows: Indices, stat: str) -> Array:
        if name == MOMENTS.name:
            moments: Array = self.moments[rows]
            return moments
        kept = self.rows.kept.get(name)
        missing = [row for row in rows.tolist() if kept is None or not kept.has(row)]
        if kept is None or missing:
            accumulator = next((each for each in BUILT_IN if each.name == name), None)
            said = (accumulator.missing(stat) if accumulator else None) or f"keeps no {name}"
            where = f"{self.rows.tensors[missing[0]]} of {self.rows.names[missing[0]]}" if missing else "no row"
            raise RuleError(f"stat: {where} {said}")
        return kept.take(self.kept[name], rows)

    def _accumulator(self, stat: str) -> Accumulator | None:
        """The accumulator from which a statistic follows; None for one whose values are in `metrics`.

        Raises:
            RuleError: no accumulator serves the statistic, or what the statistic is made of was not measured.
        """
        if stat in MAGNITUDE_STATS and not self.rows.magnitudes:
            raise RuleError(f"stat: {stat!r} is not measured unless a rule asks for it or for another of {MAGNITUDE_STATS}")
        every = (*BUILT_IN, *(kept.accumulator for kept in self.rows.kept.values()))
        found = next((each for each in every if each.serves(stat)), None)
        if found is not None and found.name not in ("moments", *self.kept) and self._has_value(stat):
            return None  # a view that was read from a file may have the value only
        if found is None and not self._has_value(stat) and not self._is_asked(stat):
            raise RuleError(f"stat: {stat!r} is not a statistic of the moments, and no rule asks for it")
        return found

    def histogram(self, rows: Indices | Sequence[int]) -> Array:
        """The counts of log2 buckets of some rows; their edges are `lightning_hooks.stats.histogram.bucket_edges()`.

        Args:
            rows: their indices: an array int [n], or any sequence of integers.

        Returns:
            float64 [n, buckets]; of a group the sum over its members.

        Raises:
            RuleError: one of them keeps none, or these are no indices.
        """
        return self.state("histogram", rows)

    def _are_measured(self, stat: str, rows: Indices, values: Array) -> NDArray[np.bool_]:
        """Of which rows the step has a statistic, given its values: a NaN of the others is none that was measured."""
        measured: NDArray[np.bool_] = self.moments[rows, COUNT] > 0
        if stat == "ratio":
            return measured & (self.moments[self._param_rows(rows), COUNT] > 0)
        accumulator = self._accumulator(stat)
        if accumulator is None:
            return measured & np.array([(row, stat) in self.metrics for row in rows.tolist()], dtype=np.bool_)
        has = self._keeping(accumulator, stat, rows)
        measured[has] = accumulator.is_measured(stat, _States(self, rows[has], stat), values[has])
        return measured & has

    def _keeping(self, accumulator: Accumulator, stat: str, rows: Indices) -> NDArray[np.bool_]:
        """Which of the rows have numbers for a statistic; all, if it is an error that one has none."""
        kept = self.rows.kept.get(accumulator.name)
        if kept is None or accumulator.missing(stat) is not None:
            return np.ones(len(rows), dtype=np.bool_)
        return np.array([kept.has(row) for row in rows.tolist()], dtype=np.bool_)

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

    def _has_value(self, stat: str) -> bool:
        return any(name == stat for _, name in self.metrics)

    def _is_asked(self, stat: str) -> bool:
        return any(stat in stats for each in (*self.rows.alike, *self.rows.groups) for _, stats in each.requests)


class _States:
    """What a step keeps of some rows, as accumulators read it; an error names the statistic for which it was read."""

    def __init__(self, view: StepView, rows: Indices, stat: str) -> None:
        self._view, self._rows, self._stat = view, rows, stat
        self.ranks = view.ranks

    def __getitem__(self, name: str) -> Array:
        return self._view._state(name, self._rows, self._stat)
