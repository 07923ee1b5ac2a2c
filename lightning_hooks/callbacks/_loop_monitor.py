"""A callback that watches, in a plain loop: resolves its rules, keeps the latest step, and writes the event file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from typing_extensions import override

from lightning_hooks.callbacks._checks import Written, refuse_common_tags
from lightning_hooks.callbacks._fit_report import leave_report
from lightning_hooks.callbacks._loop_writer import LoopWriter
from lightning_hooks.callbacks._max_overhead import OverheadLimit
from lightning_hooks.callbacks._monitor_log import limits_of
from lightning_hooks.engine.assembly import TRAIN, Assembled, Contribution
from lightning_hooks.engine.changing.checks import refuse_changed_sums
from lightning_hooks.engine.plain_loop.checks import refuse_other_stages, without_optimizer
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.errors import RuleError
from lightning_hooks.plan.defaults import DEFAULT_WATCH
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rank_check import check_ranks_agree
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.records.consumer import Latest, Publisher, StepConsumer
from lightning_hooks.records.limits import Limits, TablesOnly
from lightning_hooks.rules import Watch
from lightning_hooks.rules.prefix import name_of

if TYPE_CHECKING:
    from lightning_hooks.callbacks._monitor_options import MonitorOptions

_OF_OPTIMIZER: Final = frozenset({"final_grad", "update"})


class LoopGuest(NamedTuple):
    """A callback that reads the steps of a monitor beside it, in a plain loop.

    Args:
        rules: what the monitor has to watch besides its own rules.
        consumer: makes the consumer of its steps, given a function that makes the monitor measure at each of the next steps.
    """

    rules: Sequence[Watch]
    consumer: Callable[[Callable[[int], None]], StepConsumer]


class MonitorPart(LoopPart):
    """What a callback that watches does in a block.

    Args:
        run: the block.
        owner: the callback, for its class, its prefix and its loggers.
        options: how it watches.
        watch: its rules; None for those of `StatsMonitor()`, none for those that guests need alone.
        guests: what other callbacks ask of it.
        label: how messages name the callback.

    Raises:
        RuleError: a rule or an option is not valid in this model, or in a plain loop.
    """

    def __init__(
        self,
        run: LoopRun,
        owner: Any,
        options: MonitorOptions,
        watch: Sequence[Watch] | None,
        guests: Sequence[LoopGuest] = (),
        label: str = "",
    ) -> None:
        refuse_other_stages(options.stages, f"{label}stages")
        _refuse_other_loggers(owner.loggers, f"{label}loggers")
        self.latest = Latest()
        self._is_started = False
        self._run: LoopRun | None = run
        self._board = run.board_of(owner)
        self._report = options.report
        if options.report is not None and self._board is None and not run.has_board(owner):
            raise RuleError(
                f"{label}report={str(options.report)!r} is made of an event file, and the loop writes none; give "
                "instrument(logdir='…') or StatsMonitor(logdir='…') a folder for it"
            )
        rules = _rules_of(run, watch, guests)
        plan = resolve(
            run.model,
            rules,
            options.schedule,
            label,
            with_loss=True,
            loss_alone=options.watches_loss_alone,
            draws_every=options.histogram_every_n_steps if run.has_board(owner) else None,
            name="watch" if watch else "the default watch",
        )
        check_ranks_agree(plan, run.device)
        self._producer: Producer | None = None
        self._share: Share | None = None
        self._overhead_limit = OverheadLimit(options.max_overhead, options.schedule)
        if not plan.rows:
            super().__init__(None)
            return
        refuse_changed_sums(plan, run.transforms)
        limits = TablesOnly() if options.only_tables else limits_of(owner, options, plan, {TRAIN: plan})
        leads = self._note_written(run, owner, plan, limits)
        writers = [] if self._board is None else [self._writer_of(owner, options, limits)]
        if writers and limits.exceeded:
            warnings.warn(f"{label}{limits.warning()}", stacklevel=7)
        readers = [guest.consumer(self._focus) for guest in guests]
        first = [run.latest] if len(run.written) == 1 else []
        self._publisher = Publisher([self.latest, *first, *writers, *readers, *options.consumers])
        super().__init__(
            Contribution(
                type(owner).__name__,
                label,
                {TRAIN: plan},
                on_error=options.on_error,
                publisher=self._publisher,
                leads={TRAIN: leads},
            )
        )

    def _note_written(self, run: LoopRun, owner: Any, plan: Plan, limits: Limits) -> bool:
        """Note what the monitor writes. Returns whether it is the first with its prefix, which has the global numbers."""
        written = Written(name_of(owner.prefix), {TRAIN: plan}, limits, owner)
        refuse_common_tags([*run.written, written])
        run.written.append(written)
        return next(each for each in run.written if each.prefix == written.prefix) is written

    def _writer_of(self, owner: Any, options: MonitorOptions, limits: Limits) -> LoopWriter:
        assert self._board is not None
        return LoopWriter(self._board, owner.prefix, limits, options.histogram_every_n_steps, self._share_of)

    def _share_of(self) -> Share:
        assert self._share is not None
        return self._share

    def _focus(self, steps: int) -> None:
        if self._share is not None:
            self._share.focus(steps)

    @override
    def assembled(self, made: Assembled, producer: Producer | None) -> None:
        self._producer, self._share = producer, made.shares[TRAIN]
        if self._overhead_limit.limit is not None and self._run is not None:
            self._overhead_limit.start(self._share, self._run.meter.clock)

    @override
    def start(self) -> None:
        if self.contribution is not None and self._run is not None:
            self._is_started = True
            self._publisher.start(self.contribution.plans[TRAIN].index, self._run.context)

    @override
    def end_step(self, step: int) -> None:
        if self._share is not None and self._overhead_limit.limit is not None:
            self._overhead_limit.warn(self._share)

    @override
    def flush(self) -> None:
        if self._producer is not None:
            self._producer.flush()

    @override
    def close(self, error: BaseException | None) -> None:
        board = self._board
        was_started, self._is_started = self._is_started, False
        if was_started:
            self._publisher.close(error)
        # Drop what keeps the model alive.
        self._run, self._producer, self._share, self._board = None, None, None, None
        self.contribution = None
        if board is not None and self._report is not None and error is None:
            board.remove()  # Close the event file, so that the report is made of all of it.
            leave_report(board.folder, Path(str(self._report)).expanduser().absolute(), ())


def _rules_of(run: LoopRun, watch: Sequence[Watch] | None, guests: Sequence[LoopGuest]) -> list[Watch]:
    """The rules to watch: those of the monitor, and those that guests need besides, as far as there is an optimizer."""
    rules = list(DEFAULT_WATCH if watch is None else watch)
    needed = [rule for guest in guests for rule in guest.rules]
    if run.optimizers:
        return [*rules, *needed]
    if watch is None:
        # Without an optimizer, a rule on parameters without `tensors` gets those that exist without one.
        rules = [rule if rule.params is None else replace(rule, tensors=None) for rule in rules]
    return [*without_optimizer(rules), *(rule for rule in needed if _OF_OPTIMIZER.isdisjoint(rule.tensors or ()))]


def _refuse_other_loggers(loggers: Sequence[str], where: str) -> None:
    """Refuse the names of loggers' classes: a plain loop has no loggers but its event file."""
    if other := [name for name in loggers if name not in ("all", "tensorboard")]:
        raise RuleError(
            f"{where}: a plain loop has no logger {other[0]!r}: 'all' and 'tensorboard' stand for its event file, in "
            "instrument(logdir='…'); an empty list writes nothing"
        )
