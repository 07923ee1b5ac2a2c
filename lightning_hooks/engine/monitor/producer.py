"""Producer: makes the step view of a step that ends, and publishes it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.engine.monitor.observer import Observer
from lightning_hooks.engine.plan.plan import Plan
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.records.row_index import Due
from lightning_hooks.records.step_view import StepView, squares
from lightning_hooks.stats.histogram import shift
from lightning_hooks.stats.host_copy import HostCopy, begin_copy
from lightning_hooks.stats.merged import Merging
from lightning_hooks.stats.merging import Merges, Statistics
from lightning_hooks.stats.moments import COUNT, merge_by_index, rescale
from lightning_hooks.stats.pairs import PARTS, SMALL, SUMS, NoiseAverage, noise_estimates
from lightning_hooks.stats.ranks import world_size

Array = NDArray[np.float64]
_NORMS = {"grad": "hooks/grad_norm", "final_grad": "hooks/final_grad_norm", "param": "hooks/param_norm", "update": None}
"""Tensors over all of whose rows a norm is taken, and its tag."""


class _Ended(NamedTuple):
    """A step that has ended and is not published: its table may still be on its way from the device."""

    step: int
    reports: Mapping[str, float]
    due: Due
    merging: Merging
    scale: HostCopy | None
    wall_time: float


class Producer:
    """Publishes the steps of one stage of a monitor: at once, or where its numbers come from a device, when the next step ends.

    All ranks exchange their tables when the step itself ends. What they voted for is heeded where all of them do so alike, at
    the end of a step; views can be asked for earlier, and then the device is waited for.

    Args:
        observer: whose table it is.
        publisher: what takes the views.
        summaries: whether views have the global numbers under `hooks/`.
    """

    def __init__(self, observer: Observer, publisher: Publisher, *, summaries: bool = True) -> None:
        self.observer = observer
        self._publisher = publisher
        self._voted: _Ended | None = None  # its votes are not heeded
        self._kept: list[_Ended] = []  # not published
        plan = observer.plan
        self.has_summaries = summaries
        self._totals = _Totals(plan) if summaries else None
        self._noisy = plan.index.rows_with("noise_scale".__eq__)
        self._noise = NoiseAverage(len(plan.rows) if len(self._noisy) else 0)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around what a callback does at the end of a step: its time is the monitor's, an error goes through `on_error`."""
        with self.observer.account:
            try:
                yield
            except Exception as error:
                self.observer.fail(error)

    @property
    def waits(self) -> bool:
        """Whether a step has ended whose votes are not heeded, or that is not published."""
        return self._voted is not None or bool(self._kept)

    def end(self, step: int, reports: Mapping[str, float], scale: Tensor | None = None) -> None:
        """A watched step, or the run of another stage, ends. All ranks must call it: the table is merged over them.

        Args:
            step: its number.
            reports: of the transforms, tag to value.
            scale: the loss scale by which gradients of module tensors are divided.

        Raises:
            StoppedError: the monitor has failed on some rank, as far as the votes are here.
            Exception: the first error of a consumer.
        """
        observer = self.observer
        observer.follow()
        merging = observer.exchange()
        ended = _Ended(step, reports, observer.schedules, merging, None if scale is None else begin_copy(scale), time())
        try:
            if self._voted is not None:
                self.heed()  # after the exchange, in which a rank that fails here must have taken part
        finally:  # and whose votes it must know
            self._voted = ended
            self._kept.append(ended)
        if merging.here or observer.stage != "train":  # a run has no next step
            self.heed()

    def heed(self) -> None:
        """A step ends, watched or not: heed the votes of the one before and publish it. All ranks must call it.

        Raises:
            StoppedError: the monitor has failed on some rank.
            Exception: the first error of a consumer.
        """
        ended, self._voted = self._voted, None
        if ended is not None:
            self.observer.heed(ended.merging.merged)
        self.settle()

    def settle(self) -> None:
        """Publish what has ended; votes go on waiting for the end of a step.

        Raises:
            Exception: the first that was met, when all else is published.
        """
        failures: list[Exception] = []
        while self._kept:  # an interruption leaves those that are not published for the next time
            ended = self._kept.pop(0)
            try:
                if not ended.merging.merged.stop:
                    self._publisher.publish(self._view(ended))
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

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
        index = self.observer.plan.index
        return {f"{index.tensors[row]}/{index.names[row]}": row for row in self._noisy.tolist()}

    def _view(self, ended: _Ended) -> StepView:
        """An owned snapshot of the merged table; waits for the device where it is not here yet."""
        plan, table = self.observer.plan, self.observer.table
        # The one copy: of a single rank on the CPU the state is the table itself, which the next step clears.
        state = ended.merging.merged.state.copy()
        moments, histograms, sums, pairs = table.sections.split(state)
        scale = 1.0 if ended.scale is None else float(ended.scale.wait())
        if scale != 1.0:
            _unscale(plan, scale, moments, histograms, pairs)
        users = {} if table.only_moments else self._users(table.metric_values(moments[:, COUNT]), sums)
        if len(pairs):
            every = np.zeros((len(plan.index), SUMS))
            every[list(table.pair_rows)] = pairs
            pairs = every
        if plan.groups:
            moments = _with_groups(plan, moments, pairs)
        for array in (state, moments, histograms, pairs):
            array.flags.writeable = False
        noise = self._averages(moments, pairs)
        summaries: dict[str, float] = {}
        if self._totals is not None:
            summaries = self._totals(moments, self._noise.scale())
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
            ranks=world_size(),
        )

    def _averages(self, moments: Array, pairs: Array) -> Array:
        """Take a step into the averages behind the noise scale; a copy of what they are then."""
        rows = self._noisy[moments[self._noisy, COUNT] > 0]
        if len(rows):
            new = np.full_like(self._noise.values, np.nan)
            new[rows] = noise_estimates(pairs[rows], squares(moments[rows]) * float(world_size()) ** 2)
            self._noise.take(new)
        noise = self._noise.values.copy()
        noise.flags.writeable = False
        return noise

    def _users(self, users: dict[tuple[int, str], float], sums: Array) -> dict[tuple[int, str], float]:
        """The values of the user's own statistics: of metrics as they are, of functions the weighted means."""
        named = {(row, name): sums[place] for row, place, name in self.observer.table.users.functions}
        for group in self.observer.plan.groups:
            for name in {name for _, name in named}:
                kept = [named[(i, name)] for i in group.members if (i, name) in named]
                if kept:
                    named[(group.index, name)] = np.sum(kept, axis=0)
        return {**users, **{key: float(pair[0] / pair[1]) for key, pair in named.items() if pair[1] > 0}}


class _Totals:
    """The global numbers: norms over all rows of a tensor, and how many elements of all rows are no finite numbers.

    Args:
        plan: whose rows.
    """

    def __init__(self, plan: Plan) -> None:
        self._tensors = [tensor for tensor in _NORMS if tensor in plan.tensors]
        unions: list[Any] = [
            np.sort(np.concatenate([rows for first, rows in plan.rows.alike() if first.tensor == tensor]))
            for tensor in self._tensors
        ]
        merges = Merges([*unions, np.arange(len(plan.rows))] if len(plan.rows) else [])
        first, width = len(plan.index), len(plan.index) + len(merges)
        wanted = [*range(first, first + len(unions)), 2 * width - 1] if len(merges) else []
        self._statistics = Statistics(("norm", "nonfinite"), merges, np.array(wanted, dtype=np.int32))

    def __call__(self, moments: Array, noise_scale: float) -> dict[str, float]:
        """The numbers of a step; of a tensor of which nothing was measured there is none.

        Args:
            moments: of rows and groups.
            noise_scale: over all rows; NaN where there is none.
        """
        derived = self._statistics(moments)
        *found, nonfinite = derived.taken.tolist() or [0.0]
        there = (derived.moments[1][:, COUNT] > 0).tolist()  # of the unions, the last of which is everything
        norms = {tensor: norm for tensor, norm, is_there in zip(self._tensors, found, there, strict=False) if is_there}
        out = {tag: norms[tensor] for tensor, tag in _NORMS.items() if tag is not None and tensor in norms}
        update, param = norms.get("update"), norms.get("param")
        if update is not None and param is not None:
            out["hooks/update_ratio"] = update / param if param else (0.0 if update == 0 else float("inf"))
        if not np.isnan(noise_scale):
            out["hooks/noise_scale"] = noise_scale
        out["hooks/nonfinite"] = nonfinite if any(there[-1:]) else 0.0
        return out


def _unscale(plan: Plan, scale: float, moments: Array, histograms: Array, pairs: Array) -> None:
    """Divide what flowed under a loss scale by it, in place."""
    rows, slots = plan.flowing, plan.index.histogram_index
    moments[rows] = rescale(torch.from_numpy(moments)[rows], 1.0 / scale).numpy()
    pairs[:, SMALL] /= scale * scale
    for slot in [slots[row] for row in rows if row in slots]:
        # A loss scale is a power of two unless somebody chose another: whole buckets move.
        histograms[slot] = shift(torch.from_numpy(histograms[slot]), -round(float(np.log2(scale)))).numpy()


def _with_groups(plan: Plan, moments: Array, pairs: Array) -> Array:
    """The moments of rows and of groups; sums over pairs of groups are put into their rows."""
    members = [i for group in plan.groups for i in group.members]
    place = [group.index - len(plan.rows) for group in plan.groups for _ in group.members]
    merged = merge_by_index(torch.from_numpy(moments[members]), torch.tensor(place), len(plan.groups))
    if len(pairs):
        np.add.at(pairs, np.array(place) + len(plan.rows), pairs[members])
        for group in plan.groups:  # the number of parts is that of each member, not their sum
            pairs[group.index, PARTS] = pairs[list(group.members), PARTS].max(initial=0.0)
    return np.concatenate([moments, merged.numpy()])


def _said(key: str) -> str:
    return " of ".join(key.split("/", 1))
