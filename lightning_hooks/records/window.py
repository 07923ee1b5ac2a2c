"""Window: merges the step views of successive steps into one view, exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.plan.row_index import KeptRows, RowIndex, StatColumn, columns_of
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.facts import StepFacts
from lightning_hooks.records.global_numbers import GlobalNumbers
from lightning_hooks.records.step_view import StepView, StepWindow
from lightning_hooks.stats.accumulators import MOMENTS, Accumulator
from lightning_hooks.stats.columns import Column, Reduction, by_starts
from lightning_hooks.stats.schema import COUNT, NONFINITE
from lightning_hooks.stats.stored import GREATEST, LEAST

Array = NDArray[np.float64]
_CHUNK: Final = 16
"""Views that are merged at a time: the merge of many views costs little more than that of two."""
_MEANS: Final = [i for i, column in enumerate(MOMENTS.columns) if column.merge in ("sum", "m2") and i != NONFINITE]
"""The moments of a mean step are these, divided by the number of steps. The elements that are not finite stay a total."""


class Window:
    """The views of some successive steps of one stage and run, merged into one.

    Moments are merged by the rule that merges micro-batches and ranks, and then divided by the number of steps at which a row
    was measured. The merged view is therefore that of a mean step: its mean, its standard deviation and its extremes are those
    of all elements of all steps, its norm is the root mean square of the norms of the steps, and its count is that of a step.
    `nonfinite` is the total over the steps. Histograms are sums over the steps. What does not merge over steps keeps its last
    value, with the least and the greatest one beside it.

    Example:
        >>> rows = RowIndex(["fc.weight"], ["grad"])
        >>> window = Window()
        >>> for step, value in enumerate((3.0, 5.0)):
        ...     window.add(StepView(step, rows=rows, moments=np.array([[1.0, value, 0.0, 0.0, value, value, 0.0, 0.0, 0.0]])))
        >>> view = window.view()
        >>> view.steps, [view.stat("grad", stat).values.tolist() for stat in ("mean", "max", "count")]
        ((0, 1), [[4.0], [5.0], [1.0]])
        >>> bool(view.stat("grad", "norm").values == np.sqrt((3.0**2 + 5.0**2) / 2))
        True
    """

    def __init__(self) -> None:
        self._views: list[StepView] = []  # those that are not merged yet
        self._count = 0
        self._first = -1
        self._last: StepView | None = None
        self._moments: Array | None = None
        self._measured = np.empty(0)
        self._due: set[Any] = set()
        self._kept: dict[str, Array] = {}
        self._metrics: dict[tuple[int, str], float] = {}
        self._vectors: dict[tuple[int, str], Array] = {}
        self._vector_extremes: dict[tuple[int, str], tuple[Array, Array]] = {}
        self._statistics = _Extremes()
        self._summaries: dict[str, float] = {}
        self._tags: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def last(self) -> StepView | None:
        """The view that was added last; None before the first."""
        return self._last

    def add(self, view: StepView) -> None:
        """Add the view of the next step. Its row index must be that of the views before."""
        if not self._count:
            self._first = view.step
        self._last, self._count = view, self._count + 1
        self._views.append(view)
        if len(self._views) >= _CHUNK:
            self._merge()

    def view(self) -> StepView:
        """The merged view; that of the step itself if there is only one.

        Raises:
            ValueError: no view was added.
        """
        if self._last is None:
            raise ValueError("the window has no views")
        if self._count == 1:
            return self._last
        self._merge()
        last, measured = self._last, self._measured
        assert self._moments is not None
        moments = self._moments.copy()
        steps = np.maximum(measured, 1.0)
        moments[:, _MEANS] /= steps[:, None]
        kept = {name: self._mean_step(last.rows.kept[name], array, steps) for name, array in self._kept.items()}
        for array in (moments, measured, *kept.values()):
            array.flags.writeable = False
        vectors = dict(self._vectors)
        for (row, name), (low, high) in self._vector_extremes.items():
            vectors[row, f"{name}{LEAST}"], vectors[row, f"{name}{GREATEST}"] = low, high
        return replace(
            last,
            moments=moments,
            summaries=self._merged_summaries(last.rows, moments),
            due=frozenset(self._due),
            kept=kept,
            metrics={**self._metrics, **self._statistics.metrics()},
            vectors=vectors,
            window=StepWindow(self._first, self._count, measured, dict(self._tags)),
        )

    def _merge(self) -> None:
        views, self._views = self._views, []
        if not views:
            return
        stacked = [view.moments for view in views]
        if self._moments is None:
            self._measured = np.zeros(len(stacked[0]))
        else:
            stacked.insert(0, self._moments)
        self._measured = self._measured + sum((view.moments[:, COUNT] > 0).astype(np.float64) for view in views)
        self._moments = _merged(MOMENTS, stacked)
        rows = views[0].rows
        for name, kept in rows.kept.items():
            self._merge_kept(name, kept.accumulator, [view.kept[name] for view in views if name in view.kept])
        for view in views:
            self._due |= view.due
            self._metrics.update(view.metrics)
            self._statistics.add(view)
            self._add_vectors(view.vectors)
            self._summaries.update(view.summaries)
            for tag, value in (*view.summaries.items(), *_rates(view.facts)):
                low, high = self._tags.get(tag, (value, value))
                # A number that is not finite, as a loss of NaN, is the extreme that a reader has to see.
                self._tags[tag] = (_extreme(low, value, min), _extreme(high, value, max))

    def _merge_kept(self, name: str, accumulator: Accumulator, arrays: Sequence[Array]) -> None:
        # At a step at which nobody asked for the numbers, the array has one element in memory, a zero (see `no_numbers`).
        measured = [array for array in arrays if any(array.strides) or not array.size]
        known = self._kept.get(name)
        if known is None:
            known = measured[0] if measured else arrays[0] if arrays else None
            measured = measured[1:]
        if known is None:
            return
        if accumulator.over_steps == "last":
            neutral = accumulator.neutral().numpy()
            for array in measured:
                is_new = (array != neutral).any(axis=1)
                known = np.where(is_new[:, None], array, known)
            self._kept[name] = known
        else:
            self._kept[name] = _merged(accumulator, [known, *measured]) if measured else known

    def _mean_step(self, kept: KeptRows, numbers: Array, steps: Array) -> Array:
        """The numbers of an accumulator in the merged view: those of a mean step, if they are sums over steps."""
        if kept.accumulator.over_steps != "mean":
            return np.array(numbers)
        summed = [i for i, column in enumerate(kept.accumulator.columns) if _is_sum(column)]
        out = np.array(numbers)
        out[:, summed] /= steps[list(kept.rows), None]
        return out

    def _add_vectors(self, vectors: Mapping[tuple[int, str], Array]) -> None:
        for key, values in vectors.items():
            self._vectors[key] = values
            low, high = self._vector_extremes.get(key, (values, values))
            if low.shape != values.shape:
                low, high = values, values
            self._vector_extremes[key] = np.fmin(low, values), np.fmax(high, values)

    def _merged_summaries(self, rows: RowIndex, moments: Array) -> dict[str, float]:
        """The global numbers: those that follow from the merged moments, and the last value of every other."""
        numbers = GlobalNumbers(rows)(moments, np.nan)
        return {tag: numbers.get(tag, value) for tag, value in self._summaries.items()}


class _Extremes:
    """The least and the greatest value of each statistic that does not merge over steps, by row."""

    def __init__(self) -> None:
        self._columns: dict[Due, list[StatColumn]] = {}
        self._least: dict[str, Array] = {}
        self._greatest: dict[str, Array] = {}

    def add(self, view: StepView) -> None:
        if view.due not in self._columns:
            self._columns[view.due] = [*unmerged_columns(view.rows, columns_of(view.rows, view.due)[1])]
        for column in self._columns[view.due]:
            values = view.values(column.stat, column.rows)
            if column.stat not in self._least:
                self._least[column.stat] = np.full(len(view.rows), np.nan)
                self._greatest[column.stat] = np.full(len(view.rows), np.nan)
            for known, extreme in ((self._least, np.fmin), (self._greatest, np.fmax)):
                known[column.stat][column.rows] = extreme(known[column.stat][column.rows], values)

    def metrics(self) -> dict[tuple[int, str], float]:
        """The extremes in the form of the metrics of a view."""
        return {
            (row, f"{stat}{end}"): float(values[row])
            for end, by_stat in ((LEAST, self._least), (GREATEST, self._greatest))
            for stat, values in by_stat.items()
            for row in np.flatnonzero(~np.isnan(values)).tolist()
        }


def unmerged_columns(rows: RowIndex, columns: Iterable[StatColumn]) -> Iterable[StatColumn]:
    """The columns whose statistic does not merge over steps, so that a window has its last value and its extremes."""
    for column in columns:
        if column.stat in ("ratio", "histogram") or MOMENTS.serves(column.stat):
            continue
        accumulators = (kept.accumulator for kept in rows.kept.values() if kept.accumulator.serves(column.stat))
        accumulator = next(accumulators, None)
        if accumulator is None or accumulator.over_steps == "last":
            yield column


def _merged(accumulator: Accumulator, parts: Sequence[Array]) -> Array:
    """The numbers of rows, merged over parts of the same rows."""
    with np.errstate(invalid="ignore", over="ignore"):
        merged: Array = accumulator.merge(np.stack(parts), _over(len(parts)))[0]
    return merged


def _over(parts: int) -> Reduction:
    return by_starts([0], parts)


def _is_sum(column: Column) -> bool:
    return column.merge in ("sum", "m2")


def _extreme(known: float, value: float, how: Any) -> float:
    return known if known != known else value if value != value else how(known, value)


def _rates(facts: StepFacts | None) -> Iterable[tuple[str, float]]:
    """The learning rates of a step, each with a tag."""
    for i, optimizer in enumerate(() if facts is None else facts.optimizers):
        for j, group in enumerate(optimizer.groups):
            if group.lr is not None:
                yield f"lr/{i}/{j}", group.lr
