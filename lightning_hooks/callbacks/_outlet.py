"""Where a `HealthMonitor` tells what it finds: the terminal, TensorBoard, and the monitor that measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO
from weakref import ref

from lightning_hooks.callbacks._alerts import Alerts
from lightning_hooks.callbacks._start_line import page_lines
from lightning_hooks.callbacks._terminal import print_above
from lightning_hooks.health.terminal import block_for, line_for

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks._loggers import LoggerWriter
    from lightning_hooks.callbacks._run_context import TrainerContext
    from lightning_hooks.health.text import Block


class TrainerOutlet:
    """The outlet of a reporter in a fit.

    Args:
        trainer: known weakly.
        writer: of the monitor whose steps are diagnosed.
        context: likewise.
    """

    def __init__(self, trainer: Trainer, writer: LoggerWriter, context: TrainerContext) -> None:
        self._trainer, self._writer, self._context = ref(trainer), writer, context
        self._alerts = Alerts(writer.loggers)

    def tell(self, block: Block) -> None:
        """Show a block above the progress bar, and pass it to the loggers that have alerts."""
        self._print(partial(block_for, block))
        self._alerts.tell(block)

    def tell_line(self, line: str) -> None:
        """Show text above the progress bar."""
        self._print(partial(line_for, line))

    def _print(self, text_for: Callable[[TextIO], str]) -> None:
        trainer = self._trainer()
        if trainer is not None:
            print_above(trainer, text_for)

    def show(self, text: str, step: int) -> None:
        """Write the worst findings to TensorBoard's Text tab, with the command that shows all of them."""
        self._writer.write_text("run/findings", "\n".join([text, *page_lines(self._writer.loggers)]), step)

    def keep(self, summary: Mapping[str, Any], step: int) -> None:
        """Write the summary into the event file: a log folder that is remote has no files beside it."""
        self._writer.write_findings(summary, step)

    def note_finding(self) -> None:
        """Let the monitors write the steps around the last one singly."""
        self._writer.note_finding()

    def focus(self, steps: int) -> None:
        """Ask the monitor to measure at every one of the next steps."""
        self._context.focus(steps)
