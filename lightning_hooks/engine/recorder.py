"""From the table of a step to its record: statistics, roll-up, global numbers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.engine.observer import Due, Observer
from lightning_hooks.engine.plan import Row
from lightning_hooks.select import select
from lightning_hooks.stats.histogram import quantile, shift
from lightning_hooks.stats.moments import COUNT, MAX, MIN, NONFINITE, merge_groups, rescale
from lightning_hooks.stats.record import Series, StepRecord
from lightning_hooks.stats.rollup import RollUp, TapLabel
from lightning_hooks.stats.scalars import STATISTICS, compute, quantile_of, ratio

Array = NDArray[np.float64]
_FLOWING = ("input_grad", "output_grad")
_GLOBALS = (("hooks/grad_norm", "grad"), ("hooks/final_grad_norm", "final_grad"), ("hooks/param_norm", "param"))


class _Layout:
    """The series of one set of due schedules: which rows each holds. The same at every step with these schedules."""

    def __init__(self, rows: Sequence[Row], due: Due) -> None:
        members: dict[tuple[str, str], list[int]] = {}
        every: dict[str, list[int]] = {}
        for row in rows:
            stats = dict.fromkeys(s for schedule, asked in row.requests if schedule in due for s in asked)
            if stats:
                every.setdefault(row.tensor, []).append(row.index)
            for stat in stats:
                members.setdefault((row.tensor, stat), []).append(row.index)
        self.histograms = [(rows[i], i) for (_, stat), kept in members.items() if stat == "histogram" for i in kept]
        known: dict[tuple[int, ...], tuple[str, ...]] = {}

        def named(indices: list[int]) -> tuple[str, ...]:
            return known.setdefault(tuple(indices), tuple(rows[i].name for i in indices))

        self.series = [
            (tensor, stat, named(indices), np.array(indices))
            for (tensor, stat), indices in members.items()
            if stat != "histogram"
        ]
        self.counts = [(tensor, named(indices), np.array(indices)) for tensor, indices in every.items()]


class Recorder:
    """Turns a filled table into a `StepRecord`.

    Args:
        observer: whose table it is.
        prefix: put before every tag.
        max_scalars: how many rows the scalar form may hold before it is rolled up.
        scalars: patterns of names that stay in full all the same.
        summaries: whether it writes the global numbers under `hooks/`.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        prefix: str = "",
        max_scalars: int = 500,
        scalars: Sequence[str] = (),
        summaries: bool = True,
    ) -> None:
        self.observer = observer
        self.summaries = summaries
        self.prefix = prefix
        self.max_scalars = max_scalars
        self._layouts: dict[Due, _Layout] = {}
        self._rollups: dict[Due, RollUp | None] = {}
        self._pinned = self._pin(scalars)
        self._warned = False

    def record(self, step: int, reports: Mapping[str, float], scale: Tensor | None = None) -> StepRecord:
        """The record of the step that ends. All ranks must call it: the table is merged over them.

        Args:
            step: its number.
            reports: of the transforms, tag to value.
            scale: the loss scale by which gradients of module tensors are divided.
        """
        observer, table = self.observer, self.observer.table
        layout = self._layout(observer.schedules)
        device_moments, device_histograms, device_sums = table.split(table.merged().cpu())
        if scale is not None:
            self._unscale(device_moments, device_histograms, float(scale))
        moments, histograms, sums = device_moments.numpy(), device_histograms.numpy(), device_sums.numpy()
        users = table.metric_values()
        for row, place, name in table.functions:
            if sums[place, 1] > 0:
                users[(row, name)] = float(sums[place, 0] / sums[place, 1])
        slots = {row: slot for slot, row in enumerate(table.histogram_rows)}
        series = []
        for tensor, stat, names, rows in layout.series:
            values = self._values(stat, rows, moments, histograms, slots, users)
            series.append(Series(tensor, stat, names, values, moments[rows, COUNT] > 0))
        for tensor, names, rows in layout.counts:
            counts = moments[rows, COUNT]
            series.append(Series(tensor, "count", names, counts, counts > 0))
        drawn = [
            (f"{self.prefix}{row.tensor}_histogram/{row.name}", histograms[slots[index]])
            for row, index in layout.histograms
            if moments[index, COUNT] > 0
        ]
        return StepRecord(
            step=step,
            prefix=self.prefix,
            series=series,
            summaries={**(self._globals(moments) if self.summaries else {}), **reports},
            rolled_up=self._roll_up(series, moments),
            histograms=drawn,
        )

    def _values(
        self,
        stat: str,
        rows: NDArray[np.int64],
        moments: Array,
        histograms: Array,
        slots: Mapping[int, int],
        users: Mapping[tuple[int, str], float],
    ) -> Array:
        if stat in STATISTICS:
            return compute(stat, moments[rows])
        if stat == "ratio":
            below = [self.observer.plan.param_row_of[int(row)] for row in rows]
            return ratio(moments[rows], moments[below])
        q = quantile_of(stat)
        if q is not None:
            counts = histograms[[slots[int(row)] for row in rows]]
            return quantile(counts, q, moments[rows, MIN], moments[rows, MAX])
        return np.array([users.get((int(row), stat), np.nan) for row in rows])

    def _layout(self, due: Due) -> _Layout:
        if due not in self._layouts:
            self._layouts[due] = _Layout(self.observer.plan.rows, due)
        return self._layouts[due]

    def _unscale(self, moments: Tensor, histograms: Tensor, scale: float) -> None:
        rows = [row.index for row in self.observer.plan.rows if row.kind in _FLOWING]
        if rows and scale != 1.0:
            moments[rows] = rescale(moments[rows], 1.0 / scale)
        for slot, row in enumerate(self.observer.table.histogram_rows):
            if row in rows:
                # A loss scale is a power of two unless somebody chose another: whole buckets move.
                histograms[slot] = shift(histograms[slot], -round(float(np.log2(scale))))

    def _globals(self, moments: Array) -> dict[str, float]:
        def norm_of(tensor: str) -> float | None:
            rows = [row.index for row in self.observer.plan.rows if row.tensor == tensor and moments[row.index, COUNT] > 0]
            if not rows:
                return None
            return float(compute("norm", merge_groups(torch.from_numpy(moments[rows])).numpy()[None])[0])

        out = {tag: value for tag, tensor in _GLOBALS if (value := norm_of(tensor)) is not None}
        update, param = norm_of("update"), norm_of("param")
        if update is not None and param is not None:
            out["hooks/update_ratio"] = update / param if param else (0.0 if update == 0 else float("inf"))
        out["hooks/nonfinite"] = float(moments[:, NONFINITE].sum())
        return out

    def _pin(self, patterns: Sequence[str]) -> set[str]:
        if not patterns:
            return set()
        targets = list({row.name: row.target for row in self.observer.plan.rows}.values())
        return {target.name for target in select(targets, patterns, where="scalars")}

    def _roll_up(self, series: Sequence[Series], moments: Array) -> dict[str, float] | None:
        due = self.observer.schedules
        total = sum(len(s.names) for s in series if s.stat != "count")
        if total <= self.max_scalars:
            return None
        rows = [row for row in self.observer.plan.rows if row.due(due)]
        pinned = {
            f"{s.tensor}_{s.stat}/{name}": float(value)
            for s in series
            if s.stat != "count"
            for name, value, measured in zip(s.names, s.values, s.measured, strict=True)
            if name in self._pinned and measured
        }
        if due not in self._rollups:
            labels = [TapLabel(row.name, row.tensor, _asked(row, due)) for row in rows]
            fixed = sum(name in self._pinned for s in series if s.stat != "count" for name in s.names)
            self._rollups[due] = RollUp(labels, max(self.max_scalars - fixed, 0))
            self._say(total, self._rollups[due].depth)  # type: ignore[union-attr]
        rollup = self._rollups[due]
        assert rollup is not None
        indices = [row.index for row in rows]
        below = [self.observer.plan.param_row_of.get(index, index) for index in indices]
        return {**rollup.scalars(moments[indices], moments[below]), **pinned}

    def _say(self, total: int, depth: int) -> None:
        if not self._warned:
            self._warned = True
            level = f"level {depth} of the module tree" if depth else "one row for all"
            warnings.warn(
                f"{total} scalars are more than max_scalars={self.max_scalars}: they are merged exactly at {level}; the table "
                "has them all, scalars= keeps chosen names in full",
                stacklevel=2,
            )


def _asked(row: Row, due: Due) -> tuple[str, ...]:
    return tuple(dict.fromkeys(stat for schedule, stats in row.requests if schedule in due for stat in stats))
