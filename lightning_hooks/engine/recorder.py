"""From the table of a step to its record: statistics, roll-up, global numbers."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from time import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.engine.layout import Column, Filled, Layout
from lightning_hooks.engine.observer import Observer
from lightning_hooks.engine.readings import Readings
from lightning_hooks.engine.rows import Due
from lightning_hooks.select import select
from lightning_hooks.stats.histogram import quantile
from lightning_hooks.stats.host_copy import HostCopy, begin_copy
from lightning_hooks.stats.merged import Merged, Merging
from lightning_hooks.stats.moments import COUNT, MAX, MIN
from lightning_hooks.stats.pairs import PAIR_STATS, NoiseAverage, cosine, micro_cosine, noise_estimates
from lightning_hooks.stats.ranks import world_size
from lightning_hooks.stats.record import Histograms, StepRecord
from lightning_hooks.stats.scalars import quantile_of

Array = NDArray[np.float64]
_GLOBALS = (("hooks/grad_norm", "grad"), ("hooks/final_grad_norm", "final_grad"), ("hooks/param_norm", "param"))
_TOTALS = ("grad", "final_grad", "param", "update")


class Ended(NamedTuple):
    """A step that has ended, exchanged between the ranks, and not yet recorded.

    Args:
        step: its number.
        reports: of the transforms, tag to value.
        layout: of its record.
        merging: the table.
        scale: the loss scale by which gradients of module tensors are divided.
        wall_time: when it ended, in seconds since 1970.
        here: whether its table can be read without waiting for a device.
        nbytes: of its table.
    """

    step: int
    reports: Mapping[str, float]
    layout: Layout
    merging: Merging
    scale: HostCopy | None
    wall_time: float
    here: bool
    nbytes: int

    @property
    def merged(self) -> Merged:
        """Its table, once it is here."""
        return self.merging.merged

    def keep(self) -> None:
        """Have a table of its own, so that the next step may begin before this one is recorded."""
        self.merging.keep()


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
        self._layouts: dict[Due, Layout] = {}
        self._pinned = self._pin(scalars)
        self._warned = False
        self._nbytes = observer.table.sections.size * 8
        plan = observer.plan
        of_groups = {i for group in plan.groups if "noise_scale" in group.stats for i in group.members}
        self._noisy = any("noise_scale" in each.stats for each in plan.asked)
        self._noise = NoiseAverage(len(plan.rows) if self._noisy else 0)
        self._noise_rows = np.zeros(len(plan.rows), dtype=np.bool_)
        self._noise_rows[list(of_groups)] = True
        for first, rows in plan.rows.alike():
            self._noise_rows[rows] |= "noise_scale" in first.stats

    def end(self, step: int, reports: Mapping[str, float], scale: Tensor | None = None) -> Ended:
        """What the record of the step that ends is made of. All ranks must call it: the table is merged over them.

        Args:
            step: its number.
            reports: of the transforms, tag to value.
            scale: the loss scale by which gradients of module tensors are divided.
        """
        layout = self._layout(self.observer.schedules)
        merging = self.observer.exchange()
        copied = None if scale is None else begin_copy(scale)
        return Ended(step, reports, layout, merging, copied, time(), merging.here, self._nbytes)

    def record(self, step: int, reports: Mapping[str, float]) -> StepRecord:
        """The record of the step that ends, at once. All ranks must call it.

        Args:
            step: its number.
            reports: of the transforms, tag to value.

        Raises:
            StoppedError: the monitor has failed on some rank.
        """
        ended = self.end(step, reports)
        self.observer.heed(ended.merged)
        return self.read(ended)

    def read(self, ended: Ended) -> StepRecord:
        """The record of a step that has ended; waits for the device where its numbers are not here yet.

        Args:
            ended: the step. Each is read once, in order.
        """
        layout, state = ended.layout, ended.merged.state
        scale = None if ended.scale is None else ended.scale.wait()
        readings = Readings(self.observer.plan, self.observer.table, state, scale)
        moments = readings.moments
        if self._noisy:
            self._average_noise(readings)
        filled = layout.fill(moments)
        columns = filled.columns()
        for column, head in layout.others:
            values = self._values(column, filled, readings)
            columns.values[head.place] = values
            if column.stat in PAIR_STATS:  # needs a second gradient
                columns.measured[head.place] &= ~np.isnan(values)
        return StepRecord(
            step=ended.step,
            wall_time=ended.wall_time,
            prefix=self.prefix,
            series=columns,
            summaries={**(self._globals(filled) if self.summaries else {}), **ended.reports},
            rolled_up=filled.merged(columns),
            histograms=_drawn(layout, filled, readings) if layout.drawn_tags else (),
        )

    def state_dict(self) -> dict[str, Any]:
        """What goes on from step to step: the averages behind the noise scale, by row."""
        kept = {key: self._noise.values[index].tolist() for key, index in self._averaged.items()}
        return {"noise": kept} if kept else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint stopped; rows that are new begin anew, with one warning."""
        saved, rows = dict(state.get("noise", {})), self._averaged
        for key, index in rows.items():
            self._noise.values[index] = saved.get(key, (np.nan, np.nan))
        changes = [f"{_said(key)} begins anew" for key in rows if saved and key not in saved]
        changes += [f"{_said(key)} is gone" for key in saved if key not in rows]
        if changes:
            warnings.warn(f"the rows of noise_scale changed since the checkpoint: {', '.join(changes)}", stacklevel=2)

    @property
    def _averaged(self) -> dict[str, int]:
        """The rows that are averaged, by what a checkpoint calls them."""
        return {f"{row.tensor}/{row.name}": row.index for row in self.observer.plan.rows if self._noise_rows[row.index]}

    def _values(self, column: Column, filled: Filled, readings: Readings) -> Array:
        stat, rows = column.stat, column.rows
        if stat == "ratio":
            return filled.ratio(rows, [self.observer.plan.param_row_of[int(row)] for row in rows])
        if stat == "cosine":
            return cosine(readings.pairs[rows])
        if stat == "micro_cosine":
            return micro_cosine(readings.pairs[rows], self._summed(readings)[rows])
        if stat == "noise_scale":
            return np.array([self._noise.scale(self._members(int(row))) for row in rows])
        q = quantile_of(stat)
        if q is not None:
            return quantile(readings.histograms_of(rows), q, readings.moments[rows, MIN], readings.moments[rows, MAX])
        return readings.of_user(stat, rows)

    def _average_noise(self, readings: Readings) -> None:
        rows = self._noise_rows
        estimates = noise_estimates(readings.pairs, self._summed(readings))[: len(rows)]
        measured = readings.moments[: len(rows), COUNT] > 0
        self._noise.take(np.where((rows & measured)[:, None], estimates, np.nan))

    def _summed(self, readings: Readings) -> Array:
        """Squared norm of the sum of all micro-batches' gradients; what the step has is averaged over ranks."""
        return readings.squares * float(world_size()) ** 2

    def _members(self, index: int) -> NDArray[np.int64]:
        plan = self.observer.plan
        return np.array([index] if index < len(plan.rows) else plan.groups[index - len(plan.rows)].members)

    def _layout(self, due: Due) -> Layout:
        if due not in self._layouts:
            totals = _TOTALS if self.summaries else ()
            layout = Layout(self.observer.plan, due, self.max_scalars, self._pinned, totals, self.prefix)
            self._layouts[due] = layout
            if layout.depth is not None:
                self._say(layout.scalars, layout.depth)
        return self._layouts[due]

    def _globals(self, filled: Filled) -> dict[str, float]:
        norms = filled.total_norms()
        out = {tag: norms[tensor] for tag, tensor in _GLOBALS if tensor in norms}
        update, param = norms.get("update"), norms.get("param")
        if update is not None and param is not None:
            out["hooks/update_ratio"] = update / param if param else (0.0 if update == 0 else float("inf"))
        if self._noisy:
            scale = self._noise.scale()
            if not np.isnan(scale):
                out["hooks/noise_scale"] = scale
        out["hooks/nonfinite"] = filled.nonfinite
        return out

    def _pin(self, patterns: Sequence[str]) -> set[str]:
        if not patterns:
            return set()
        targets = list({row.name: row.target for row in self.observer.plan.rows}.values())
        return {target.name for target in select(targets, patterns, where="scalars")}

    def _say(self, total: int, depth: int) -> None:
        if not self._warned:
            self._warned = True
            level = f"level {depth} of the module tree" if depth else "one row for all"
            warnings.warn(
                f"{total} scalars are more than max_scalars={self.max_scalars}: they are merged exactly at {level}; the table "
                "has them all, scalars= keeps chosen names in full",
                stacklevel=2,
            )


def _said(key: str) -> str:
    return " of ".join(key.split("/", 1))


def _drawn(layout: Layout, filled: Filled, readings: Readings) -> Histograms:
    tags, rows = layout.drawn_tags, layout.drawn_rows
    there = filled.measured[rows]
    if not there.all():
        tags, rows = tuple(itertools.compress(tags, there)), rows[there]
    return Histograms(tags, readings.histograms_of(rows))
