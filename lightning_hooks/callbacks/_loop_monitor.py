"""A callback that watches, in a plain loop: resolves its rules, keeps the latest step, and writes the event file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from typing_extensions import override

from lightning_hooks.callbacks._checks import Earlier
from lightning_hooks.callbacks._chosen_loggers import has_layers
from lightning_hooks.callbacks._disk import budget_of
from lightning_hooks.callbacks._fit_report import FitReport, file_of_report
from lightning_hooks.callbacks._loop_writer import LoopWriter
from lightning_hooks.callbacks._monitor_plans import resolve_stages
from lightning_hooks.callbacks._monitor_run import MonitorRun, check_written
from lightning_hooks.callbacks._start_line import start_line
from lightning_hooks.callbacks._terminal import print_in_loop
from lightning_hooks.engine.assembly import TRAIN, Assembled
from lightning_hooks.engine.plain_loop.checks import refuse_other_stages, without_optimizer
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.errors import RuleError
from lightning_hooks.health.terminal import line_for
from lightning_hooks.plan.defaults import DEFAULT_WATCH
from lightning_hooks.plan.rank_check import check_ranks_agree
from lightning_hooks.records.consumer import Latest, StepConsumer
from lightning_hooks.rules import Watch
from lightning_hooks.stats.processes import rank

if TYPE_CHECKING:
    from lightning_hooks.callbacks._monitor_options import MonitorOptions

_OF_OPTIMIZER: Final = frozenset({"final_grad", "update"})


class LoopGuest(NamedTuple):
    """A callback that reads the steps of a monitor beside it, in a plain loop.

    Args:
        rules: what the monitor has to watch besides its own rules.
        consumer: makes the consumer of its steps, given a function that makes the monitor measure at each of the next steps,
            and one that makes it write the steps around the last one singly.
        every_step: whether the monitor has to measure the loss and the whole gradient at every step.
    """

    rules: Sequence[Watch]
    consumer: Callable[[Callable[[int], None], Callable[[], None]], StepConsumer]
    every_step: bool = False


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
        self._run: LoopRun | None = run
        run.disk = run.disk or budget_of(run.callbacks, _say)
        # A loop has no loggers that keep files, so a report is made only if the user has asked for it.
        self._board, self._report = run.board_of(owner), options.report or None
        # Who is told of findings in the terminal is told there what is watched, too.
        self._name = type(owner).__name__ if guests and rank() == 0 else ""
        self._monitor: MonitorRun | None = None
        self._is_started = False
        if self._report is not None and self._board is None and not run.has_board(owner):
            raise RuleError(
                f"{label}report={str(options.report)!r} is made of an event file, and the loop writes none; give "
                "instrument(logdir='…') or StatsMonitor(logdir='…') a folder for it"
            )
        resolved = resolve_stages(
            run.model,
            _rules_of(run, watch, guests),
            replace(options, every_step=options.every_step or any(guest.every_step for guest in guests)),
            label=label,
            name="watch" if watch else "the default watch",
            draws=run.has_board(owner),
        )
        check_ranks_agree(resolved.plan, run.device)
        if not resolved.plan.rows:
            super().__init__(None)
            return
        written = check_written(owner, options, resolved, _earlier(run))
        run.written.append(written)
        self._limits_overhead = options.max_overhead is not None
        self._monitor = monitor = MonitorRun(written, options, label)
        writers = []
        if self._board is not None:
            every = options.histogram_every_n_steps
            how = {"has_layers": partial(has_layers, owner), "budget": run.disk}
            writers.append(LoopWriter(self._board, owner.prefix, written.limits, every, self._share, **how))
            if said := written.limits.warning():
                warnings.warn(f"{label}{said}", stacklevel=7)
        readers = [guest.consumer(monitor.focus, run.disk.note_finding) for guest in guests]
        first = [run.latest] if len(run.written) == 1 else []
        super().__init__(monitor.contribute([*first, *writers, *readers, *options.consumers], _earlier(run)))

    @property
    def latest(self) -> Latest:
        """The views of the monitor; without any if no rule matches anything."""
        return Latest() if self._monitor is None else self._monitor.latest

    def _share(self) -> Share:
        assert self._monitor is not None and self._monitor.trained is not None
        return self._monitor.trained

    @override
    def assembled(self, made: Assembled, producer: Producer | None) -> None:
        if self._monitor is not None and producer is not None and self._run is not None:
            clock = self._run.meter.clock if self._limits_overhead else None
            self._monitor.assembled(made, {TRAIN: producer}, clock)

    @override
    def start(self) -> None:
        if self.contribution is not None and self._monitor is not None and self._run is not None:
            self._is_started = True
            if self._name:
                boards = [] if self._board is None else [self._board]
                print_in_loop(partial(line_for, start_line(self._name, self.contribution.plans[TRAIN], boards)))
            self._monitor.publisher.start(self.contribution.plans[TRAIN].index, self._run.context)

    @override
    def end_step(self, step: int) -> None:
        if self._monitor is not None and self._limits_overhead:
            self._monitor.end_step()

    @override
    def flush(self) -> None:
        if self._monitor is not None:
            self._monitor.flush()

    @override
    def close(self, error: BaseException | None) -> None:
        board, monitor = self._board, self._monitor
        was_started, self._is_started = self._is_started, False
        if was_started and monitor is not None:
            monitor.publisher.close(error)
        # Drop what keeps the model alive.
        self._run, self._board, self.contribution = None, None, None
        if monitor is not None:
            monitor.forget()
        if board is not None and self._report is not None and error is None:
            board.remove()  # Close the event file, so that the report is made of all of it.
            FitReport(board.folder, file_of_report(self._report, board.folder), (), is_asked=True).leave()


def _say(sentence: str) -> None:
    """Print a sentence: a plain loop has no logger."""
    print_in_loop(partial(line_for, sentence))


def _earlier(run: LoopRun) -> Earlier:
    """What the callbacks do whose parts are made already."""
    return Earlier(tuple(run.written), tuple(run.transforms))


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
