"""A `HealthMonitor` in a plain loop: where it tells what it finds, and what its actions do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from typing_extensions import override

from lightning_hooks.callbacks._terminal import print_in_loop
from lightning_hooks.engine.assembly import Assembled, Contribution
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.errors import RuleError
from lightning_hooks.health.actions import Actions
from lightning_hooks.health.reporter import Reporter
from lightning_hooks.health.terminal import block_for, line_for
from lightning_hooks.health.text import Block


class LoopOutlet:
    """The outlet of a reporter in a plain loop: standard error.

    Args:
        focus: makes the monitor measure at every one of the next steps.
        note_finding: makes the monitor write the steps around the last one singly.
    """

    def __init__(self, focus: Callable[[int], None], note_finding: Callable[[], None]) -> None:
        self._focus, self._note_finding = focus, note_finding

    def tell(self, block: Block) -> None:
        """Print a block."""
        print_in_loop(partial(block_for, block))

    def tell_line(self, line: str) -> None:
        """Print text."""
        print_in_loop(partial(line_for, line))

    def show(self, text: str, step: int) -> None:
        """Do nothing: a plain loop has no loggers."""

    def keep(self, summary: Mapping[str, Any], step: int) -> None:
        """Do nothing: the findings of a plain loop are in the files of its folder."""

    def note_finding(self) -> None:
        """Write the steps around the last one singly."""
        self._note_finding()

    def focus(self, steps: int) -> None:
        """Measure at every one of the next steps."""
        self._focus(steps)


class HealthPart(LoopPart):
    """What a `HealthMonitor` does in a block: the steps are those of a monitor of the list, or its own.

    Args:
        own: its own monitor; None beside a `StatsMonitor` whose steps serve.
        reporter: returns its reporter, when the block has begun.
        lookouts: of the block.
        trail: notes each call of a layer; None beside a `FlightRecorder`, which does so itself.
        ends: called when the block is over.
    """

    def __init__(
        self,
        own: LoopPart | None,
        reporter: Callable[[], Reporter | None],
        lookouts: Sequence[Lookout],
        trail: LoopPart | None,
        ends: Callable[[], None],
    ) -> None:
        contribution = Contribution("HealthMonitor") if own is None else own.contribution
        others = [] if trail is None or trail.contribution is None else [trail.contribution]
        super().__init__(None if contribution is None else replace(contribution, lookouts=lookouts, others=others))
        self._own, self._trail, self._ends = own, trail, ends
        self._reporter = reporter
        self._producer: Producer | None = None

    @override
    def assembled(self, made: Assembled, producer: Producer | None) -> None:
        self._producer = producer
        if self._own is not None:
            self._own.assembled(made, producer)

    @override
    def start(self) -> None:
        if self._own is not None:
            self._own.start()

    @override
    def end_step(self, step: int) -> None:
        if self._own is not None:
            self._own.end_step(step)
        reporter = self._reporter()
        if reporter is not None:
            if self._producer is not None and not self._producer.observer.has_lost_a_share:
                reporter.end = step + 1
            reporter.raise_if_asked()

    @override
    def flush(self) -> None:
        if self._own is not None:
            self._own.flush()

    @override
    def leave(self, error: BaseException | None) -> None:
        if self._trail is not None:
            self._trail.leave(error)

    @override
    def close(self, error: BaseException | None) -> None:
        for part in (self._own, self._trail):
            if part is not None:
                part.close(error)
        self._ends()


def refuse_in_loop(actions: Actions, check_first_batch: Any, label: str) -> None:
    """Refuse options of a `HealthMonitor` that a plain loop cannot serve.

    Raises:
        RuleError: an action saves a checkpoint, or the first batch is to be checked.
    """
    if check_first_batch is not False:
        raise RuleError(
            f"{label}check_first_batch: instrument knows neither the batches nor the loss of a loop; call "
            "lightning_hooks.check(model, batch, loss=…) before it"
        )
    for key, listed in actions.by_key.items():
        if any(action.kind == "checkpoint" for action in listed):
            raise RuleError(
                f"{label}actions[{key!r}]: instrument does not know what the loop would save as a checkpoint; give a function "
                "of your own, {'call': save}, or let the loop look at `watched.stopped`"
            )
