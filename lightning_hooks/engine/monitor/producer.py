"""Producer: makes the step view of a step that ends, and publishes it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import time
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_hooks.engine.monitor.observer import Observer
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.row_index import joined
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.records.step_view import StepView, squares
from lightning_hooks.saved_state import DamagedState, read_list, read_mapping, read_number, starting_again
from lightning_hooks.stats.histogram import shift
from lightning_hooks.stats.host_copy import HostCopy, PendingState, begin_copy
from lightning_hooks.stats.moments import merge_by_index, rescale
from lightning_hooks.stats.pairs import PARTS, SMALL, SUMS, NoiseAverage, noise_estimates
from lightning_hooks.stats.schema import COUNT, NONFINITE
from lightning_hooks.stats.statistics import STATISTICS

Array = NDArray[np.float64]
_NORMS = {"grad": "hooks/grad_norm", "final_grad": "hooks/final_grad_norm", "param": "hooks/param_norm", "update": None}
"""Tensors whose norm over all rows is computed, and its tag; None if only `hooks/update_ratio` needs it."""
_NO_NOISE: Final[Array] = np.empty((0, 2))
_NO_NOISE.flags.writeable = False


class _Ended(NamedTuple):
    """A step that has ended: its table may still be on its way from the device."""

    step: int
    reports: Mapping[str, float]
    due: Due
    merging: PendingState
    scale: HostCopy | None
    wall_time: float


class Producer:
    """Publishes the steps of one stage of a monitor: at once, or when the next step ends if its numbers come from a device.

    All ranks exchange their tables when the step ends. They act on what a rank requested in the exchange (to stop, or longer
    intervals) at the end of a step too, since all must do so at the same one. Views can be published earlier: then the device
    is waited for.

    Args:
        observer: whose table it is.
        publisher: what takes the views.
        summaries: whether views have the global numbers under `hooks/`, the overhead included.
    """

    def __init__(self, observer: Observer, publisher: Publisher, *, summaries: bool = True) -> None:
        self.observer = observer
        self._publisher = publisher
        self._to_agree: _Ended | None = None  # ranks have not acted on its requests
        self._unpublished: list[_Ended] = []
        plan = observer.plan
        self._totals = _Totals(plan) if summaries else None
        self._noisy = plan.index.rows_with("noise_scale".__eq__)
        self._noise = NoiseAverage(len(plan.rows) if len(self._noisy) else 0)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around the work of a callback at the end of a step: its time is the monitor's, an error goes through `on_error`."""
        with self.observer.account, self.observer.guard():
            yield

    @property
    def is_pending(self) -> bool:
        """Whether a step has ended on whose requests ranks have not acted, or that is not published."""
        return self._to_agree is not None or bool(self._unpublished)

    def end(self, step: int, reports: Mapping[str, float]) -> None:
        """A watched step, or the run of another stage, ends. All ranks must call it: the table is merged over them.

        Raises:
            StoppedError: the monitor has failed on some rank, as far as its requests have come from the device.
            Exception: the first error of a consumer.
        """
        observer = self.observer
        if self._totals is not None and observer.overhead is not None:
            reports = {**reports, **observer.overhead.report()}
        scale = observer.scale  # by which gradients of module tensors are still multiplied
        observer.fallback.note_order()
        merging = observer.exchange()
        ended = _Ended(step, reports, observer.schedules, merging, None if scale is None else begin_copy(scale), time())
        try:
            if self._to_agree is not None:
                self.agree()  # after the exchange, in which a rank that fails here must have taken part
        finally:
            self._to_agree = ended
            self._unpublished.append(ended)
        if merging.ready or observer.stage != "train":  # a run has no next step
            self.agree()

    def agree(self) -> None:
        """A step ends, watched or not: act on the requests of the one before and publish it. All ranks must call it.

        Raises:
            StoppedError: the monitor has failed on some rank.
            Exception: the first error of a consumer.
        """
        ended, self._to_agree = self._to_agree, None
        if ended is not None:
            self.observer.agree(ended.merging.merged)
        self.publish_pending()

    def publish_pending(self) -> None:
        """Publish the steps that have ended; ranks act on their requests at the end of a step only.

        Raises:
            Exception: the first that was met, when all else is published.
        """
        failures: list[Exception] = []
        while self._unpublished:  # an interruption leaves the rest for the next time
            ended = self._unpublished.pop(0)
            try:
                if not ended.merging.merged.stop:
                    self._publisher.publish(self._view(ended))
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def state_dict(self) -> dict[str, Any]:
        """The averages behind the noise scale, by row."""
        kept = {key: self._noise.values[index].tolist() for key, index in self._averaged.items()}
        return {"noise": kept} if kept else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Restore a checkpoint; the averages of new rows start empty, with one warning.

        Returns:
            What is damaged and starts again, in words.
        """
        damaged: list[str] = []
        saved, rows = {}, self._averaged
        with starting_again(damaged):
            saved = read_mapping(state.get("noise", {}), "noise")
        self._noise.values[:] = np.nan
        for key, index in rows.items():
            if key in saved:
                with starting_again(damaged):
                    self._noise.values[index] = _read_averages(saved[key], f"noise[{key!r}]")
        changes = [f"{_described(key)} starts again" for key in rows if saved and key not in saved]
        changes += [f"{_described(key)} is gone" for key in saved if key not in rows]
        if changes:
            warnings.warn(f"the rows of noise_scale changed since the checkpoint: {', '.join(changes)}", stacklevel=2)
        return damaged

    @property
    def _averaged(self) -> dict[str, int]:
        """The rows that are averaged, by what a checkpoint calls them."""
        index = self.observer.plan.index
        return {f"{index.tensors[row]}/{index.names[row]}": row for row in self._noisy.tolist()}

    def _view(self, ended: _Ended) -> StepView:
        """An owned snapshot of the merged table; waits for the device if necessary."""
        plan, table = self.observer.plan, self.observer.table
        # The one copy: of a single rank on the CPU the state is the table itself, which the next step clears.
        state = ended.merging.merged.state.copy()
        moments, histograms, sums, pairs = table.sections.split(state)
        scale = 1.0 if ended.scale is None else float(ended.scale.wait())
        if scale != 1.0:
            _unscale(plan, scale, moments, histograms, pairs)
        users = {} if table.only_moments else self._users(table.users.metric_values(moments[:, COUNT]), sums)
        if len(pairs):
            every = np.zeros((len(plan.index), SUMS))
            every[list(table.pair_rows)] = pairs
            pairs = every
        if plan.groups:
            moments = _with_groups(plan, moments, pairs)
        for array in (state, moments, histograms, pairs):
            array.flags.writeable = False
        noise, noise_scale = self._averages(moments, pairs) if len(self._noisy) else (_NO_NOISE, math.nan)
        summaries = {} if self._totals is None else self._totals(moments, noise_scale)
        return StepView(
            step=ended.step,
            stage=self.observer.stage,
            wall_time=ended.wall_time,
            rows=plan.index,
            moments=moments,
            summaries={**summaries, **ended.reports},
            due=ended.due,
            histograms=histograms,
            pairs=pairs,
            noise=noise,
            users=users,
            ranks=table.ranks,
        )

    def _averages(self, moments: Array, pairs: Array) -> tuple[Array, float]:
        """Update the averages behind the noise scale with a step; returns a copy of them, and the scale over all rows."""
        rows = self._noisy[moments[self._noisy, COUNT] > 0]
        if len(rows):
            new = np.full_like(self._noise.values, np.nan)
            new[rows] = noise_estimates(pairs[rows], squares(moments[rows]) * float(self.observer.table.ranks) ** 2)
            self._noise.take(new)
        noise = self._noise.values.copy()
        noise.flags.writeable = False
        return noise, self._noise.scale()

    def _users(self, users: dict[tuple[int, str], float], sums: Array) -> dict[tuple[int, str], float]:
        """The values of the user's own statistics: metrics, and weighted means of functions."""
        named = {(row, name): sums[i] for row, i, name in self.observer.table.users.functions}
        for group in self.observer.plan.groups:
            for name in group.users:
                named[(group.index, name)] = np.sum([named[(i, name)] for i in group.members], axis=0)
        return {**users, **{key: float(pair[0] / pair[1]) for key, pair in named.items() if pair[1] > 0}}


class _Totals:
    """The global numbers: norms over all rows of a tensor, and the number of elements of all rows that are not finite."""

    def __init__(self, plan: Plan) -> None:
        self._count = len(plan.rows)  # groups, which follow, hold the same elements again
        rows = {
            tensor: np.array([row.index for row in plan.rows if row.tensor == tensor])
            for tensor in _NORMS
            if tensor in plan.tensors
        }
        self._tensors = tuple(rows)
        self._rows = joined([*rows.values()])  # of all tensors one after the other, and where those of each begin
        self._starts = np.cumsum([0, *map(len, rows.values())], dtype=np.intp)[:-1]

    def __call__(self, moments: Array, noise_scale: float) -> dict[str, float]:
        """The numbers of a step; none of a tensor of which nothing was measured, nor a noise scale that is NaN."""
        rows = moments[: self._count]
        counts = rows[:, COUNT]
        squared = squares(rows)  # 0 where nothing was measured
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.isfinite(np.add.reduce(squared)):  # the statistic knows what the norm of an infinity is
                squared = np.where(counts > 0, np.square(STATISTICS["norm"](rows)), 0.0)
            sums = self._sums(squared)
        norms = dict(zip(self._tensors, np.sqrt(sums).tolist(), strict=True))
        if not counts.all():
            measured = dict(zip(self._tensors, self._sums(counts).tolist(), strict=True))
            norms = {tensor: norm for tensor, norm in norms.items() if measured[tensor]}
        out = {tag: norms[tensor] for tensor, tag in _NORMS.items() if tag is not None and tensor in norms}
        update, param = norms.get("update"), norms.get("param")
        if update is not None and param is not None:
            out["hooks/update_ratio"] = update / param if param else (0.0 if update == 0 else float("inf"))
        if not math.isnan(noise_scale):
            out["hooks/noise_scale"] = noise_scale
        out["hooks/nonfinite"] = float(np.add.reduce(rows[:, NONFINITE]))
        return out

    def _sums(self, of_rows: Array) -> Array:
        """The sum over the rows of each tensor."""
        sums: Array = np.add.reduceat(of_rows.take(self._rows), self._starts) if self._tensors else np.empty(0)
        return sums


def _unscale(plan: Plan, scale: float, moments: Array, histograms: Array, pairs: Array) -> None:
    """Divide what flowed under a loss scale by it, in place."""
    rows, histogram_of = plan.loss_scaled, plan.index.histogram_index
    moments[rows] = rescale(torch.from_numpy(moments)[rows], 1.0 / scale).numpy()
    pairs[:, SMALL] /= scale * scale
    kept = [histogram_of[row] for row in rows if row in histogram_of]
    if kept:
        # A loss scale is a power of two unless the user chose another: whole buckets move.
        histograms[kept] = shift(torch.from_numpy(histograms[kept]), -round(float(np.log2(scale)))).numpy()


def _with_groups(plan: Plan, moments: Array, pairs: Array) -> Array:
    """The moments of rows and of groups; sums over pairs of groups are put into their rows."""
    members = [i for group in plan.groups for i in group.members]
    group_of = [group.index - len(plan.rows) for group in plan.groups for _ in group.members]
    merged = merge_by_index(torch.from_numpy(moments[members]), torch.tensor(group_of, device="cpu"), len(plan.groups))
    if len(pairs):
        np.add.at(pairs, np.array(group_of) + len(plan.rows), pairs[members])
        for group in plan.groups:  # the number of parts is that of each member, not their sum
            pairs[group.index, PARTS] = pairs[list(group.members), PARTS].max(initial=0.0)
    return np.concatenate([moments, merged.numpy()])


def _read_averages(value: Any, key: str) -> tuple[float, float]:
    """The two averages of a row: finite, or NaN if the row has no value yet."""
    pair = read_list(value, key)
    if len(pair) != 2:
        raise DamagedState(f"{key} must have 2 numbers, got {len(pair)}")
    if all(isinstance(each, float) and math.isnan(each) for each in pair):
        return math.nan, math.nan
    return read_number(pair[0], f"{key}[0]"), read_number(pair[1], f"{key}[1]")


def _described(key: str) -> str:
    return " of ".join(key.split("/", 1))
