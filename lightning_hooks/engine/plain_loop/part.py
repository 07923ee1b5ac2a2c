"""The seam between a plain loop and the objects of its list: what such an object offers, and what it does in a block."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from lightning_hooks.engine.assembly import Assembled, Contribution
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.records.consumer import StepConsumer


class LoopPart:
    """What one object of the list does in a block. A subclass overrides the methods in which it acts.

    Args:
        contribution: what it brings into the run; None if no rule matches anything.

    Attributes:
        is_over: whether the block has ended.
        writer: writes what transforms report in steps at which no monitor measures; None for nothing.
    """

    is_over = False
    writer: StepConsumer | None = None

    def __init__(self, contribution: Contribution | None) -> None:
        self.contribution = contribution

    def assembled(self, made: Assembled, producer: Producer | None) -> None:
        """Called when the run is assembled, before any hook is registered.

        Args:
            made: the participants and the share of the table that the contribution has got.
            producer: of the training steps; None if nothing is measured.
        """

    def start(self) -> None:
        """Called when the block is entered, before any hook is registered."""

    def end_step(self, step: int) -> None:
        """Called when a step has ended and was perhaps published. An error reaches the loop from its optimizer's step."""

    def flush(self) -> None:
        """Publish the finished steps, waiting for numbers that are still on a device."""

    def leave(self, error: BaseException | None) -> None:
        """Called when the block ends, while the hooks are still registered.

        Args:
            error: what ended the block; None after a normal end.
        """

    def close(self, error: BaseException | None) -> None:
        """Called when all hooks are removed and the last step is published; a second call does nothing.

        Args:
            error: as for `leave`.
        """


@runtime_checkable
class InLoop(Protocol):
    """An object that `instrument` takes in its list: each callback of this package is one."""

    def in_loop(self, run: LoopRun) -> LoopPart:
        """Resolve and check the rules, which changes nothing, and return what the object does in the block.

        Args:
            run: the block, with what the objects before this one do.

        Raises:
            RuleError, UnsupportedError: a rule or an option is not valid in this model, or in a plain loop.
        """
