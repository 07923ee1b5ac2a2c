"""Producer: makes the step view of a finished step, and publishes it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_hooks.engine.watching.common_facts import CommonFacts, NotedFacts
from lightning_hooks.engine.watching.global_numbers import GlobalNumbers
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.records.facts import StepFacts, Structure
from lightning_hooks.records.step_view import StepView
from lightning_hooks.saved_state import DamagedState, read_list, read_mapping, read_number, starting_again
from lightning_hooks.stats.accumulators import History
from lightning_hooks.stats.accumulators.store import PendingNumbers, no_numbers
from lightning_hooks.stats.host_copy import HostCopy, begin_copy
from lightning_hooks.stats.merged_state import PendingState
from lightning_hooks.stats.moments import merge_by_index
from lightning_hooks.stats.pairs import noise_scale
from lightning_hooks.stats.schema import COUNT
from lightning_hooks.stats.sections import rescale_sections

Array = NDArray[np.float64]


class _FinishedStep(NamedTuple):
    """A step that has ended: its table may still be on its way from the device."""

    step: int
    reports: Mapping[str, float]
    due: Due
    pending: PendingState
    of_stores: Mapping[str, PendingNumbers]
    scale: HostCopy | None
    wall_time: float
    facts: NotedFacts | None


class Producer:
    """Publishes the steps of one stage of a monitor: at once, or when the next step ends if the numbers come from a device.

    All ranks exchange their tables when a step ends. What a rank requests in the exchange (to stop, or longer intervals) takes
    effect at the end of a step too, because all ranks must act on it at the same step. A view can be published earlier, which
    waits for the device.

    Args:
        observer: fills the table.
        publisher: passes the views to the consumers.
        summaries: whether views have the global numbers under `run/`, the overhead included.
        facts: returns the facts of the step that ends, of this rank; None for views without facts.
        structure: of the model; None for views without it.
    """

    def __init__(
        self,
        observer: Observer,
        publisher: Publisher,
        *,
        summaries: bool = True,
        facts: Callable[[], StepFacts] | None = None,
        structure: Structure | None = None,
    ) -> None:
        self.observer = observer
        self._facts = None if facts is None else CommonFacts(facts, observer.table.ranks == 1)
        self._structure = structure
        self._publisher = publisher
        # The last step, until ranks have acted on the requests of its exchange.
        self._awaiting_requests: _FinishedStep | None = None
        self._unpublished: list[_FinishedStep] = []
        plan = observer.plan
        self._global_numbers = GlobalNumbers(plan) if summaries else None
        # By section of the state: the averages that its accumulator continues from step to step, and the rows whose averages a
        # rule requests.
        self._histories: dict[int, History] = {}
        self._following: dict[int, NDArray[np.bool_]] = {}
        for section, each in enumerate(observer.table.sections.kept):
            asked = np.isin(each.rows, plan.index.rows_with(each.accumulator.followed.__contains__))
            history = each.accumulator.history(asked)
            if history is not None:
                self._histories[section], self._following[section] = history, asked

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Surrounds work of a callback at the end of a step: the monitor accounts for its time, and `on_error` for an error."""
        with self.observer.account, self.observer.guard():
            yield

    @property
    def is_pending(self) -> bool:
        """Whether a finished step is not published, or ranks have not acted on the requests of its exchange."""
        return self._awaiting_requests is not None or bool(self._unpublished)

    def end(self, step: int, reports: Mapping[str, float]) -> None:
        """Finish a watched step, or the run of another stage. All ranks must call `end`, which merges the table over them.

        Raises:
            StoppedError: the monitor has failed on some rank, in an exchange that has arrived from the device.
            Exception: the first error of a consumer.
        """
        observer = self.observer
        if self._global_numbers is not None and observer.overhead is not None:
            reports = {**reports, **observer.overhead.report()}
        scale = observer.loss_scale  # the factor by which gradients of module tensors are still multiplied
        observer.fallback.note_order()
        own, checksum = self._facts_of_rank()
        pending = observer.exchange(checksum)
        before = None if self._awaiting_requests is None else self._awaiting_requests.pending
        # With several ranks `note` reads the exchange of the previous step. Wait for it here, where the wait does not count.
        if before is not None and observer.table.ranks > 1:
            self._wait_for(before)
        facts = None if self._facts is None else self._facts.note(own, pending, before)
        of_stores = observer.table.exchange_stores()
        copied_scale = None if scale is None else begin_copy(scale)
        ended = _FinishedStep(step, reports, observer.schedules, pending, of_stores, copied_scale, time(), facts)
        try:
            # Call `agree` after the exchange, because it may fail on this rank alone: the others need its part in the exchange.
            if self._awaiting_requests is not None:
                self.agree()
        finally:
            self._awaiting_requests = ended
            self._unpublished.append(ended)
        # Do not wait for the end of the next step if the table is ready, or if there is no next step: the run of another stage
        # counts as one step.
        if pending.ready or observer.stage != "train":
            self.agree()

    def agree(self) -> None:
        """Finish the previous step: act on what ranks requested in its exchange, then publish its view.

        All ranks must call `agree` when a step ends, watched or not.

        Raises:
            StoppedError: the monitor has failed on some rank.
            Exception: the first error of a consumer.
        """
        ended, self._awaiting_requests = self._awaiting_requests, None
        if ended is not None:
            self._wait_for(ended.pending)
            if self._facts is not None:
                self._facts.agree(ended.pending)
            self.observer.agree(ended.pending.merged)
        self.publish_pending()

    def _wait_for(self, pending: PendingState) -> None:
        """Wait for the device; what that takes does not count as time of the monitor."""
        # Ignore an error: reading the state again raises it where the caller handles it.
        with self.observer.account.meter.waiting, suppress(Exception):
            _ = pending.merged

    def _facts_of_rank(self) -> tuple[StepFacts | None, int]:
        """The facts of this rank, and their checksum."""
        if self._facts is not None:
            # Guard the call: if this rank cannot read its facts, it must still take part in the exchange.
            with self.observer.guard():
                return self._facts.of_rank()
        return None, 0

    def publish_pending(self) -> None:
        """Publish the finished steps, without acting on what ranks requested in their exchanges.

        Raises:
            Exception: the first error, after all other steps are published.
        """
        failures: list[Exception] = []
        # Remove each step just before it is published: after Ctrl-C the next call publishes the rest.
        while self._unpublished:
            ended = self._unpublished.pop(0)
            try:
                if not ended.pending.merged.stop:
                    self._publisher.publish(self._view(ended))
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def state_dict(self) -> dict[str, Any]:
        """The averages from which the noise scale is computed, by row."""
        kept = {key: history.state(slot) for key, (history, slot) in self._followed.items()}
        return {"noise": kept} if kept else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Restore a checkpoint; the averages of new rows start empty, with one warning.

        Returns:
            A sentence about each damaged entry, whose averages start empty.
        """
        damaged: list[str] = []
        saved, rows = {}, self._followed
        with starting_again(damaged):
            saved = read_mapping(state.get("noise", {}), "noise")
        for key, (history, slot) in rows.items():
            history.load(slot, None)
            if key in saved:
                with starting_again(damaged):
                    history.load(slot, _read_averages(saved[key], f"noise[{key!r}]"))
        changes = [f"{_described(key)} starts again" for key in rows if saved and key not in saved]
        changes += [f"{_described(key)} is gone" for key in saved if key not in rows]
        if changes:
            warnings.warn(f"the rows of noise_scale changed since the checkpoint: {', '.join(changes)}", stacklevel=2)
        return damaged

    @property
    def _followed(self) -> dict[str, tuple[History, int]]:
        """The history and the slot of each row that has averages, by the name of the row in a checkpoint."""
        index, kept = self.observer.plan.index, self.observer.table.sections.kept
        return {
            f"{index.tensors[row]}/{index.names[row]}": (history, slot)
            for section, history in self._histories.items()
            for slot, row in enumerate(kept[section].rows)
            if self._following[section][slot]
        }

    def _view(self, ended: _FinishedStep) -> StepView:
        """An owned snapshot of the merged table; waits for the device if necessary."""
        plan, table = self.observer.plan, self.observer.table
        # Copy the state, because on a single rank on the CPU it is the table itself, which the next step clears.
        state = ended.pending.merged.state.copy()
        sections = ended.pending.sections
        arrays = sections.split(state)
        scale = 1.0 if ended.scale is None else float(ended.scale.wait())
        if scale != 1.0:
            rescale_sections(sections, [*map(torch.from_numpy, arrays)], plan.loss_scaled, 1.0 / scale)
        moments = arrays[0]
        metrics = table.metrics.values(moments[:, COUNT]) if table.metrics.rows else {}
        kept = sections.kept
        for section, history in self._histories.items():
            own = list(kept[section].rows)
            arrays[section] = history.update(
                _StepStates(kept[section].accumulator.name, arrays[section], moments[own], table.ranks)
            )
        if plan.groups:
            moments = _with_groups(plan, moments)
        for array in (state, moments, *arrays):
            array.flags.writeable = False
        named = {each.accumulator.name: array for each, array in zip(kept[1:], arrays[1:], strict=True)}
        vectors: dict[tuple[int, str], Array] = {}
        for name, numbers in ended.of_stores.items():
            named[name], of_rows = numbers.finish(moments, scale, plan.loss_scaled)
            vectors.update(of_rows)
        for name, rows in plan.index.kept.items():
            if name not in named:
                named[name] = no_numbers(len(rows.rows), rows.accumulator.width)
        facts = None
        if self._facts is not None and ended.facts is not None:
            facts = self._facts.of_view(ended.facts, ended.pending.merged.facts_differ, scale)
        summaries = {} if self._global_numbers is None else self._global_numbers(moments, _noise_scale(named))
        return StepView(
            step=ended.step,
            stage=self.observer.stage,
            wall_time=ended.wall_time,
            rows=plan.index,
            moments=moments,
            summaries={**summaries, **ended.reports},
            due=ended.due,
            kept=named,
            metrics=metrics,
            vectors=vectors,
            ranks=table.ranks,
            facts=facts,
            structure=self._structure,
        )


class _StepStates(NamedTuple):
    """The numbers of one accumulator, and the moments of the same rows, as a history reads them by name."""

    name: str
    numbers: Array
    moments: Array
    ranks: int

    def __getitem__(self, name: Any) -> Any:
        return {self.name: self.numbers, "moments": self.moments}[name]


def _noise_scale(kept: Mapping[str, Array]) -> float:
    """The noise scale over all rows that keep it; NaN where there are none."""
    pairs = kept.get("pairs")
    return math.nan if pairs is None else float(noise_scale(pairs.sum(0, keepdims=True))[0])


def _with_groups(plan: Plan, moments: Array) -> Array:
    """The moments of the rows, followed by those of the groups."""
    members = [i for group in plan.groups for i in group.members]
    group_of = [group.index - len(plan.rows) for group in plan.groups for _ in group.members]
    merged = merge_by_index(torch.from_numpy(moments[members]), torch.tensor(group_of, device="cpu"), len(plan.groups))
    return np.concatenate([moments, merged.numpy()])


def _read_averages(value: Any, key: str) -> tuple[float, float]:
    """The two averages of a row from a checkpoint: finite, or NaN if the row has no value yet."""
    pair = read_list(value, key)
    if len(pair) != 2:
        raise DamagedState(f"{key} must have 2 numbers, got {len(pair)}")
    if all(isinstance(each, float) and math.isnan(each) for each in pair):
        return math.nan, math.nan
    return read_number(pair[0], f"{key}[0]"), read_number(pair[1], f"{key}[1]")


def _described(key: str) -> str:
    return " of ".join(key.split("/", 1))
