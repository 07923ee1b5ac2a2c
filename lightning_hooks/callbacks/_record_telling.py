"""Tells what a flight recorder has recorded: to the health rules of its run, or in a journal and a block of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lightning_hooks.callbacks._ours import our_callbacks
from lightning_hooks.callbacks._terminal import print_above, print_in_loop
from lightning_hooks.callbacks.health import HealthMonitor
from lightning_hooks.engine.recording.findings import RULE, cause_of, finding_of, write_finding
from lightning_hooks.health.terminal import block_for, line_for
from lightning_hooks.health.text import block_of_cause
from lightning_hooks.recorder.record import FlightRecord

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer

Show = Callable[[Callable[[TextIO], str]], None]


def tell_record(trainer: Trainer, record: FlightRecord, folder: Path | None) -> None:
    """Tell of a record, once.

    A `HealthMonitor` of the Trainer finds the bad number too: it is given the cause, and tells both. Without one the cause is
    shown above the progress bar and written into a journal of its own.
    """
    is_shown = _show(our_callbacks(trainer), partial(print_above, trainer), record, folder)
    if is_shown and folder is not None:
        write_finding(record, folder)


def tell_in_loop(callbacks: Sequence[Any], record: FlightRecord, folder: Path | None) -> None:
    """Tell of a record of a plain loop, once; on standard error if no `HealthMonitor` of its list tells of it.

    Args:
        callbacks: those of the list.
        record: the record.
        folder: where it was written; None if it was not.
    """
    _show(callbacks, print_in_loop, record, folder)


def _show(callbacks: Iterable[Any], show: Show, record: FlightRecord, folder: Path | None) -> bool:
    """Show the place of the record of an exception, or a cause that no `HealthMonitor` tells. Returns whether one is shown."""
    if record.failure is not None:
        if folder is not None:
            line = f"The flight record of {record.failure.type} in step {record.step} is in {folder}."
            show(partial(line_for, line))
        return False
    cause = cause_of(record, folder)
    monitors = [each for each in callbacks if isinstance(each, HealthMonitor)]
    if any(monitor.explain(RULE, cause) for monitor in monitors):
        return False
    show(partial(block_for, block_of_cause(cause, [finding_of(record)])))
    return True
