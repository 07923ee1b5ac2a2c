"""Producer: makes the step views of a finished step, one for each owner of the table, and publishes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from time import time
from typing import Any, NamedTuple

import torch

from lightning_hooks.engine.watching.common_facts import CommonFacts, NotedFacts
from lightning_hooks.engine.watching.guard import AccountedGuard
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.engine.watching.share_views import ShareViews, TableNumbers
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.facts import StepFacts, Structure
from lightning_hooks.stats.accumulators.store import PendingNumbers
from lightning_hooks.stats.host_copy import HostCopy, begin_copy
from lightning_hooks.stats.merged_state import PendingState
from lightning_hooks.stats.schema import COUNT
from lightning_hooks.stats.sections import rescale_sections


class _FinishedStep(NamedTuple):
    """A step that has ended: its table may still be on its way from the device."""

    step: int
    due: Mapping[int, Due]
    reports: Mapping[int, Mapping[str, float]]
    pending: PendingState
    of_stores: Mapping[str, PendingNumbers]
    scale: HostCopy | None
    wall_time: float
    facts: NotedFacts | None


class Producer:
    """Publishes the steps of one stage: at once, or when the next step ends if the numbers come from a device.

    All ranks exchange their tables when a step ends. What a rank requests in the exchange (to stop, or longer intervals) takes
    effect at the end of a step too, because all ranks must act on it at the same step. A view can be published earlier, which
    waits for the device.

    Args:
        observer: fills the table.
        facts: returns the facts of the step that ends, of this rank; None for views without facts.
        structure: of the model; None for views without it.

    Attributes:
        before_publishing: called before finished steps are published, so that a consumer knows what the readers of the table
            know of these steps.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        facts: Callable[[], StepFacts] | None = None,
        structure: Structure | None = None,
    ) -> None:
        self.observer = observer
        self._facts = None if facts is None else CommonFacts(facts, observer.table.ranks == 1)
        # The last step, until ranks have acted on the requests of its exchange.
        self._awaiting_requests: _FinishedStep | None = None
        self._unpublished: list[_FinishedStep] = []
        self.before_publishing: list[Callable[[], None]] = []
        self.views = {
            share.part.number: ShareViews(share, observer.table, observer.stage, structure)
            for share in observer.shares
            if share.publisher is not None
        }

    def guard(self) -> AccountedGuard:
        """Surrounds work at the end of a step: the observer accounts for its time, and `on_error` for an error."""
        return AccountedGuard(self.observer.account, self.observer.guard)

    @property
    def is_pending(self) -> bool:
        """Whether a finished step is not published, or ranks have not acted on the requests of its exchange."""
        return self._awaiting_requests is not None or bool(self._unpublished)

    @property
    def publishes(self) -> bool:
        """Whether an owner with consumers has rows that are due in the current step."""
        return bool(self._due_now())

    @property
    def is_between(self) -> bool:
        """Whether the step under way has only what is measured at every step, for every owner with consumers."""
        return self._are_between(self._due_now())

    def _are_between(self, owners: Iterable[int]) -> bool:
        return all([self.observer.shares[number].is_between for number in owners])

    def end(self, step: int, take_reports: Callable[[], Mapping[str, float]]) -> None:
        """Finish a watched step, or the run of another stage. All ranks must call `end`, which merges the table over them.

        Args:
            step: the step.
            take_reports: what participants report, called for each owner that has a view of the step. Transforms report to the
                first one only.

        Raises:
            StoppedError: an owner has failed on some rank, in an exchange that has arrived from the device.
            Exception: the first error of a consumer.
        """
        observer = self.observer
        due = self._due_now()
        scale = observer.loss_scale  # the factor by which gradients of module tensors are still multiplied
        observer.fallback.note_order()
        is_between = self._are_between(due)
        own, checksum = (None, 0) if is_between else self._facts_of_rank()
        pending = observer.exchange(checksum)
        awaited = self._awaiting_requests
        before = None if awaited is None else awaited.pending
        # With several ranks, `note` reads the exchange of the previous step. Wait for the exchange before the call of `note`,
        # so that the wait does not count as time of the observer.
        if before is not None and observer.table.ranks > 1:
            self._wait_for(before)
        facts = None
        if self._facts is not None and not is_between:
            # The exchange of a step without facts does not say whether the facts of ranks differ.
            facts = self._facts.note(own, pending, None if awaited is None or awaited.facts is None else awaited.pending)
        of_stores = observer.table.exchange_stores()
        copied_scale = None if scale is None else begin_copy(scale)
        told = self._reports(due, take_reports)
        ended = _FinishedStep(step, due, told, pending, of_stores, copied_scale, time(), facts)
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

    def _due_now(self) -> dict[int, Due]:
        """By owner with consumers, what is due in the step that ends. Outside training, a whole run is one step."""
        shares, due = self.observer.shares, self.observer.due_shares
        if self.observer.stage != "train":
            due = {share.part.number: frozenset(share.plan.schedules) for share in shares if not share.stopped}
        return {number: each for number, each in due.items() if number in self.views and not shares[number].is_absent}

    def _reports(self, due: Iterable[int], take_reports: Callable[[], Mapping[str, float]]) -> dict[int, Mapping[str, float]]:
        """By owner, the reports in its view."""
        told: dict[int, Mapping[str, float]] = {}
        for number in due:
            share = self.observer.shares[number]
            if share.is_between:
                continue
            told[number] = take_reports()
            if share.writes_global and share.overhead is not None:
                told[number] = {**told[number], **share.overhead.report()}
        return told

    def agree(self) -> None:
        """Finish the previous step: act on what ranks requested in its exchange, then publish its views.

        All ranks must call `agree` when a step ends, watched or not.

        Raises:
            StoppedError: an owner has failed on some rank.
            Exception: the first error of a consumer.
        """
        ended, self._awaiting_requests = self._awaiting_requests, None
        if ended is not None:
            self._wait_for(ended.pending)
            if self._facts is not None and ended.facts is not None:
                self._facts.agree(ended.pending)
            self.observer.agree(ended.pending.merged)
        self.publish_pending()

    def _wait_for(self, pending: PendingState) -> None:
        """Wait for the device; what that takes does not count as time of the observer."""
        if not pending.ready:
            # Ignore an error: reading the state again raises it where the caller handles it.
            with self.observer.account.meter.waiting, suppress(Exception):
                _ = pending.merged

    def _facts_of_rank(self) -> tuple[StepFacts | None, int]:
        """The facts of this rank, and their checksum."""
        if self._facts is not None:
            # Guard the call: if this rank cannot read its facts, it must still take part in the exchange.
            with self.observer.guard:
                return self._facts.of_rank()
        return None, 0

    def flush(self) -> None:
        """Publish the finished steps, waiting for numbers that are still on a device. Errors go through `on_error`."""
        if self.is_pending:
            with self.guard():
                self.publish_pending()

    def publish_pending(self) -> None:
        """Publish the finished steps, without acting on what ranks requested in their exchanges.

        An error of a consumer concerns the owner of the consumer alone, and goes through its `on_error`.

        Raises:
            Exception: the first error, after all other views are published.
        """
        failures: list[Exception] = []
        for call in self.before_publishing if self._unpublished else ():
            call()
        # Remove each step just before it is published: after Ctrl-C the next call publishes the rest.
        while self._unpublished:
            failures += self._publish(self._unpublished.pop(0))
        if failures:
            raise failures[0]

    def _publish(self, ended: _FinishedStep) -> list[Exception]:
        """Publish the views of a step. Returns the errors that are to be raised."""
        raised: list[Exception] = []
        numbers: TableNumbers | None = None
        stops = ended.pending.merged.stops
        owners = [self.observer.shares[number] for number in ended.due if not stops[number]]
        for position, share in enumerate(owners):
            try:
                with self.observer.guard_of([share]):
                    numbers = self._numbers(ended) if numbers is None else numbers
                    self._publish_to(share, numbers, ended, is_last=position == len(owners) - 1)
            except Exception as error:
                raised.append(error)
        return raised

    def _publish_to(self, share: Share, numbers: TableNumbers, ended: _FinishedStep, *, is_last: bool) -> None:
        number = share.part.number
        assert share.publisher is not None
        view = self.views[number].view(numbers, ended.due[number], ended.reports.get(number, {}), is_last=is_last)
        share.publisher.publish(view)

    def _numbers(self, ended: _FinishedStep) -> TableNumbers:
        """An owned copy of the numbers of the merged table; waits for the device if necessary."""
        plan, table = self.observer.plan, self.observer.table
        # Copy the state, because on a single rank on the CPU it is the table itself, which the next step clears.
        state = ended.pending.merged.state.copy()
        sections = ended.pending.sections
        arrays = sections.split(state)
        scale = 1.0 if ended.scale is None else float(ended.scale.wait())
        if scale != 1.0:
            rescale_sections(sections, [*map(torch.from_numpy, arrays)], plan.loss_scaled, 1.0 / scale)
        moments = arrays[0]
        kept = {each.accumulator.name: array for each, array in zip(sections.kept[1:], arrays[1:], strict=True)}
        vectors: dict[tuple[int, str], Any] = {}
        for name, numbers in ended.of_stores.items():
            kept[name], of_rows = numbers.finish(moments, scale, plan.loss_scaled)
            vectors.update(of_rows)
        facts = None
        if self._facts is not None and ended.facts is not None:
            facts = self._facts.of_view(ended.facts, ended.pending.merged.facts_differ, scale)
        metrics = table.metrics.values(moments[:, COUNT]) if table.metrics.rows else {}
        return TableNumbers(ended.step, ended.wall_time, moments, kept, metrics, vectors, facts)
