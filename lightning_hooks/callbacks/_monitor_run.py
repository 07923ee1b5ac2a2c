"""A callback that watches, in one run: the same for a Trainer and for a plain loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_hooks.callbacks._checks import Earlier, Written, refuse_common_tags
from lightning_hooks.callbacks._max_overhead import OverheadLimit
from lightning_hooks.callbacks._monitor_log import limits_of
from lightning_hooks.callbacks._monitor_options import MonitorOptions
from lightning_hooks.callbacks._monitor_plans import Resolved
from lightning_hooks.callbacks._monitor_state import MonitorState
from lightning_hooks.engine.assembly import TRAIN, Assembled, Contribution
from lightning_hooks.engine.changing.checks import refuse_changed_sums
from lightning_hooks.engine.participants.overhead import Clock
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.records.consumer import Latest, Publisher, StepConsumer
from lightning_hooks.records.limits import TablesOnly
from lightning_hooks.rules.prefix import name_of


def check_written(owner: Any, options: MonitorOptions, resolved: Resolved, earlier: Earlier) -> Written:
    """What a monitor writes, if it may do so after what earlier callbacks do.

    Args:
        owner: the monitor.
        options: how it watches.
        resolved: its rules, of which one matches something.
        earlier: what earlier callbacks do.

    Raises:
        RuleError: its rules are not valid together with those of earlier callbacks.
        NoMatchError: a pattern of `scalars` matches no row.
    """
    plan, plans = resolved
    if TRAIN in plans:
        refuse_changed_sums(plan, earlier.transforms)
    limits = TablesOnly() if options.only_tables else limits_of(owner, options, plan, plans)
    written = Written(name_of(owner.prefix), plans, limits, owner)
    refuse_common_tags((*earlier.written, written))
    return written


class MonitorRun:
    """What a monitor has in one run: its consumers, its shares of the tables, and the limit of its overhead.

    Args:
        written: what it writes.
        options: how it watches.
        label: how messages name it.

    Attributes:
        latest: the last view of each stage.
        publisher: passes views to the consumers, once `contribute` was called.
        shares: of the tables, by stage; empty until the run is assembled.
    """

    def __init__(self, written: Written, options: MonitorOptions, label: str) -> None:
        self.latest = Latest()
        self.publisher = Publisher([])
        self.shares: Mapping[str, Share] = {}
        self._written, self._options, self._label = written, options, label
        self._producers: Mapping[str, Producer] = {}
        self._overhead_limit = OverheadLimit(options.max_overhead, options.schedule)

    def contribute(self, consumers: Sequence[StepConsumer], earlier: Earlier) -> Contribution:
        """What the monitor brings into the run.

        Args:
            consumers: those of its steps, besides `latest`.
            earlier: what all monitors write that know the same prefixes, this one among them.
        """
        self.publisher = Publisher([self.latest, *consumers])
        written = self._written
        return Contribution(
            type(written.owner).__name__,
            self._label,
            written.plans,
            on_error=self._options.on_error,
            publisher=self.publisher,
            leads={stage: earlier.leads(written, stage) for stage in written.plans},
        )

    def assembled(
        self, made: Assembled, producers: Mapping[str, Producer], clock: Clock | None, saved: MonitorState | None = None
    ) -> None:
        """Called when the run is assembled.

        Args:
            made: the shares of the tables.
            producers: of the run, by stage.
            clock: of overhead; None to measure none.
            saved: what to continue from; None to begin anew.
        """
        self.shares, self._producers = made.shares, producers
        if (trained := self.trained) is not None and clock is not None:
            saved = saved or MonitorState()
            self._continue_noise(saved)
            self._overhead_limit.start(trained, clock, saved.factor)

    @property
    def trained(self) -> Share | None:
        """The share of the table of training; None if the monitor does not watch training."""
        return self.shares.get(TRAIN)

    @property
    def is_due(self) -> bool:
        """Whether the monitor measures what its rules request in the training step under way."""
        trained = self.trained
        if trained is None or trained.is_between:
            return False
        return trained.part.number in self._producers[TRAIN].observer.due_shares

    def focus(self, steps: int) -> None:
        """Measure at every one of the next steps."""
        if (trained := self.trained) is not None:
            trained.focus(steps)

    def end_step(self) -> None:
        """Warn once if the limit of the overhead has made intervals longer."""
        if (trained := self.trained) is not None:
            self._overhead_limit.warn(trained)

    def flush(self) -> None:
        """Publish the finished steps, waiting for numbers that are still on a device."""
        for producer in self._producers.values():
            producer.flush()

    def state(self) -> dict[str, Any]:
        """The averages of the noise scale, and the intervals that `max_overhead` has made longer."""
        trained = self.trained
        if trained is None:
            return {}
        noise = self._producers[TRAIN].views[trained.part.number].averages()
        return ({"noise": noise} if noise else {}) | ({"factor": trained.factor} if trained.factor > 1 else {})

    def proceed(self, saved: MonitorState) -> None:
        """Continue the training under way from a checkpoint."""
        if (trained := self.trained) is not None:
            self._continue_noise(saved)
            self._overhead_limit.continue_from(trained, saved.factor)

    def _continue_noise(self, saved: MonitorState) -> None:
        assert self.trained is not None
        self._producers[TRAIN].views[self.trained.part.number].continue_from(saved.noise)

    def forget(self) -> None:
        """Drop what keeps the model alive, when the run is over."""
        self.shares, self._producers = {}, {}
