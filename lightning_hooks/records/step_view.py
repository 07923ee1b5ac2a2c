"""Step view: a read-only snapshot of a finished step, from which every statistic can be computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.row_index import Indices, RowIndex, as_indices
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.facts import StepFacts, Structure
from lightning_hooks.records.read_only import ReadOnlyDict
from lightning_hooks.stats.accumulators import BUILT_IN, MOMENTS, Accumulator
from lightning_hooks.stats.row_states import RowStates
from lightning_hooks.stats.schema import COUNT
from lightning_hooks.stats.statistics import MAGNITUDE_STATS, ratio_of_rows

Array = NDArray[np.float64]
STAGE_PREFIX: Final = {"train": "", "validate": "val_", "test": "test_", "predict": "predict_"}
"""The prefix of the tags of each stage; it follows the prefix of the monitor."""
NOTHING: Final = RowIndex()


class Series(NamedTuple):
    """One statistic of one tensor for all its rows.

    Args:
        tensor: `grad`, `output[0]` …
        stat: `norm`, `p99`, or `count`.
        names: the dotted names of the rows; the same object at every step with the same rows.
        values: float64 [rows]; NaN for rows that were not measured.
        measured: whether each row was measured, bool [rows].
    """

    tensor: str
    stat: str
    names: tuple[str, ...]
    values: Array
    measured: NDArray[np.bool_]


def _read_only_empty(*shape: int) -> Array:
    array = np.empty(shape)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class StepWindow:
    """The steps that one view of an event file merges, after a share of the disk budget of the run is used.

    Args:
        first: the first of the steps; the last one is the step of the view.
        count: the number of steps, as far as they were watched.
        measured: the number of these steps at which each row was measured, float64 [rows].
        extremes: the least and the greatest value of the numbers that are no rows, by tag: those of `summaries`, and the
            learning rates as `lr/<optimizer>/<group>`.
    """

    first: int
    count: int
    measured: Array = field(default_factory=lambda: _read_only_empty(0), repr=False)
    extremes: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class StepView:
    """The statistics of a finished training step, or of a whole run of another stage.

    A view owns its arrays and mappings, and they are read-only. It does not change when the next step is measured, so it may be
    kept. Views are equal on all ranks, except for reports of transforms that each rank makes of its own gradients.

    Args:
        step: the x-axis of `self.log`.
        stage: `train`, `validate`, `test` or `predict`.
        wall_time: the time at which the step ended, in seconds since 1970.
        rows: the names and tensors of all rows; the same object for all views of a stage in a run.
        moments: float64 [rows, 9], merged over calls, micro-batches and ranks, and divided by the loss scale. The count of a
            row that was not measured is 0. `lightning_hooks.stats.moments` names the columns.
        summaries: the global numbers and the reports of transforms, by tag.
        due: the schedules that were due.
        kept: the states of accumulators besides the moments, by the name of the accumulator: float64 [rows that keep the state,
            columns]. `state` reads them by the index of the row.
        metrics: the values of your own metrics by (row, name). In a view that was read from a file, also the values of other
            statistics whose states are not in the file.
        vectors: one number for each unit by (row, name), float64 [units], for rules with `Units(vectors=True)`: `abs_max`,
            `rms`, `mean` and `zero_fraction`.
        ranks: the number of ranks that were merged.
        facts: how the step trained; None if nobody knows. The same object as in the view before if nothing changed.
        structure: the modules and parameters of the model; None if nobody knows. The same object in all views of a run.
        is_between: whether the step is one at which no rule measures: only the loss, the norm of the gradient and the batch
            have numbers. Only consumers that read such steps get the view.
        window: the steps that the view merges; None for a single step. Only views that were read from an event file have one.
            Their moments are those of a mean step, so that a norm is a root mean square, but `nonfinite` is the total.

    Example:
        >>> StepView(3, summaries={"run/grad_norm": 2.0}).summaries["run/grad_norm"]
        2.0
    """

    step: int
    _: KW_ONLY
    stage: str = "train"
    wall_time: float = 0.0
    rows: RowIndex = NOTHING
    moments: Array = field(default_factory=lambda: _read_only_empty(0, MOMENTS.width), repr=False)
    summaries: Mapping[str, float] = field(default_factory=dict)
    due: Due = frozenset()
    kept: Mapping[str, Array] = field(default_factory=dict, repr=False)
    metrics: Mapping[tuple[int, str], float] = field(default_factory=dict, repr=False)
    vectors: Mapping[tuple[int, str], Array] = field(default_factory=dict, repr=False)
    ranks: int = 1
    facts: StepFacts | None = None
    structure: Structure | None = field(default=None, repr=False)
    is_between: bool = False
    window: StepWindow | None = None

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the last step that the view holds: of most views the same.

        Example:
            >>> StepView(7).steps, StepView(7, window=StepWindow(4, count=4)).steps
            ((7, 7), (4, 7))
        """
        return (self.step if self.window is None else self.window.first), self.step

    def __post_init__(self) -> None:
        # All consumers get the same view, so none of them may change its mappings. The producer may later change the mappings
        # that it passed, so the view copies them.
        for name in ("summaries", "kept", "metrics", "vectors"):
            object.__setattr__(self, name, ReadOnlyDict(getattr(self, name)))

    def stat(self, tensor: str, stat: str) -> Series:
        """A statistic of all rows and groups of a tensor. No rule needs to request a statistic that follows from the moments.

        Args:
            tensor: the tensor as a rule has it: `grad`, `output[0]`.
            stat: the name of a statistic or of one of your own, or `count`.

        Returns:
            The names, the values (float64 [n]) and `measured` (bool [n]) of the n rows and groups of this tensor, in the order
            of the row index.

        Raises:
            RuleError: no row has this tensor, or the monitor does not keep the state from which the statistic follows.
        """
        indices, names = self.rows.of(tensor)
        if not names:
            tensors = ", ".join(dict.fromkeys(self.rows.tensors)) or "none"
            raise RuleError(f"stat: no row has the tensor {tensor!r}; the tensors of this view are {tensors}")
        values = self.values(stat, indices)
        return Series(tensor, stat, names, values, self._are_measured(stat, indices, values))

    def values(self, stat: str, rows: Indices | Sequence[int]) -> Array:
        """A statistic of some rows; NaN for rows that were not measured.

        Args:
            stat: the name of a statistic or of one of your own, or `count`.
            rows: the indices of the rows: an array int [n], or any sequence of integers.

        Returns:
            float64 [n].

        Raises:
            RuleError: the monitor does not keep the state from which the statistic follows, or `rows` are not indices.
        """
        rows = as_indices(rows)
        if stat == "ratio":
            return ratio_of_rows(self.moments, rows, self._param_rows(rows))
        accumulator = self._accumulator(stat)
        if accumulator is None:
            return np.array([self.metrics.get((row, stat), np.nan) for row in rows.tolist()], dtype=np.float64)
        has_state = self._have_state(accumulator, stat, rows)
        values = np.full(len(rows), np.nan)
        values[has_state] = accumulator.compute(stat, self._states(stat, rows[has_state]))
        return values

    def state(self, accumulator: str, rows: Indices | Sequence[int]) -> Array:
        """The state of an accumulator for some rows.

        Args:
            accumulator: the name of the accumulator: `moments`, `histogram`, `pairs` or the name of one of your own.
            rows: the indices of the rows: an array int [n], or any sequence of integers.

        Returns:
            float64 [n, columns]; for a group the state merged over its rows.

        Raises:
            RuleError: a row does not keep the state, or `rows` are not indices.
        """
        return self._state(accumulator, as_indices(rows), stat=accumulator)

    def _states(self, stat: str, rows: Indices) -> RowStates:
        """The states of these rows; an error names the statistic that is computed from them."""
        return RowStates(partial(self._state, rows=rows, stat=stat), self.ranks)

    def _state(self, name: str, rows: Indices, stat: str) -> Array:
        if name == MOMENTS.name:
            moments: Array = self.moments[rows]
            return moments
        kept = self.rows.kept.get(name)
        missing = rows if kept is None else rows[~kept.have[rows]]
        if kept is None or len(missing):
            accumulator = next((each for each in BUILT_IN if each.name == name), None)
            reason = (accumulator.missing(stat) if accumulator else None) or f"keeps no {name}"
            row = f"{self.rows.tensors[missing[0]]} of {self.rows.names[missing[0]]}" if len(missing) else "no row"
            raise RuleError(f"stat: {row} {reason}")
        return kept.take(self.kept[name], rows)

    def _accumulator(self, stat: str) -> Accumulator | None:
        """The accumulator that computes a statistic; None for a statistic whose values are in `metrics`.

        Raises:
            RuleError: no accumulator computes the statistic, or the moments were measured without sums of magnitudes.
        """
        if stat in MAGNITUDE_STATS and not self.rows.magnitudes:
            raise RuleError(f"stat: {stat!r} is not measured unless a rule asks for it or for another of {MAGNITUDE_STATS}")
        accumulators = (*BUILT_IN, *(kept.accumulator for kept in self.rows.kept.values()))
        accumulator = next((each for each in accumulators if each.serves(stat)), None)
        # A view that was read from a file may lack the state of an accumulator and still have the values of its statistics.
        if accumulator is not None and accumulator.name not in ("moments", *self.kept) and self._has_value(stat):
            return None
        if accumulator is None and not self._has_value(stat) and not self._is_requested(stat):
            raise RuleError(f"stat: {stat!r} is not a statistic of the moments, and no rule asks for it")
        return accumulator

    def histogram(self, rows: Indices | Sequence[int]) -> Array:
        """The log2 histograms of some rows. `lightning_hooks.stats.histogram.bucket_edges()` gives the edges of the buckets.

        Args:
            rows: the indices of the rows: an array int [n], or any sequence of integers.

        Returns:
            The counts, float64 [n, buckets]; for a group the sum over its rows.

        Raises:
            RuleError: a row does not keep a histogram, or `rows` are not indices.
        """
        return self.state("histogram", rows)

    def _are_measured(self, stat: str, rows: Indices, values: Array) -> NDArray[np.bool_]:
        """Whether the step has a statistic of each row. A NaN value alone does not tell: a measured value can be NaN too."""
        measured: NDArray[np.bool_] = self.moments[rows, COUNT] > 0
        if stat == "ratio":
            params: NDArray[np.bool_] = self.moments[self._param_rows(rows), COUNT] > 0
            return measured & params
        accumulator = self._accumulator(stat)
        if accumulator is None:
            return measured & np.array([(row, stat) in self.metrics for row in rows.tolist()], dtype=np.bool_)
        has_state = self._have_state(accumulator, stat, rows)
        states = self._states(stat, rows[has_state])
        measured[has_state] = accumulator.is_measured(stat, states, values[has_state])
        return measured & has_state

    def _have_state(self, accumulator: Accumulator, stat: str, rows: Indices) -> NDArray[np.bool_]:
        """Whether each row keeps the state for a statistic.

        True for all rows if a missing state is an error: reading the state then raises.
        """
        kept = self.rows.kept.get(accumulator.name)
        if kept is None or accumulator.missing(stat) is not None:
            return np.ones(len(rows), dtype=np.bool_)
        return kept.have[rows]

    def _param_rows(self, rows: Indices) -> Indices:
        params = self.rows.param_rows[rows]
        if (params < 0).any():
            row = rows[params < 0][0]
            raise RuleError(
                f"stat: 'ratio' is of an update and its parameter; {self.rows.tensors[row]} of {self.rows.names[row]} has none"
            )
        return params

    def _has_value(self, stat: str) -> bool:
        return any(name == stat for _, name in self.metrics)

    def _is_requested(self, stat: str) -> bool:
        return any(stat in stats for each in (*self.rows.requested_rows, *self.rows.groups) for _, stats in each.requests)
