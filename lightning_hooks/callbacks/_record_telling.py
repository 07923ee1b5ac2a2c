"""Tells what a flight recorder has recorded: to the health rules of the Trainer, or in a journal and a block of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hooks.callbacks._ours import our_callbacks
from lightning_hooks.callbacks._terminal import print_above
from lightning_hooks.callbacks.health import HealthMonitor
from lightning_hooks.engine.recording.findings import RULE, cause_of, finding_of, write_finding
from lightning_hooks.health.terminal import block_for, line_for
from lightning_hooks.health.text import block_of_cause
from lightning_hooks.recorder.record import FlightRecord

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer


def tell_record(trainer: Trainer, record: FlightRecord, folder: Path | None) -> None:
    """Tell of a record, once.

    A `HealthMonitor` of the Trainer finds the bad number too: it is given the cause, and tells both. Without one the cause is
    shown above the progress bar and written into a journal of its own.
    """
    if record.failure is not None:
        if folder is not None:
            line = f"The flight record of {record.failure.type} in step {record.step} is in {folder}."
            print_above(trainer, partial(line_for, line))
        return
    cause = cause_of(record, folder)
    monitors = [each for each in our_callbacks(trainer) if isinstance(each, HealthMonitor)]
    if any(monitor.explain(RULE, cause) for monitor in monitors):
        return
    print_above(trainer, partial(block_for, block_of_cause(cause, [finding_of(record)])))
    if folder is not None:
        write_finding(record, folder)
