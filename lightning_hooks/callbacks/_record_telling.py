"""Tells what a flight recorder has recorded: to the health rules of its run, or in a journal and a block of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_hooks.callbacks._ours import our_callbacks
from lightning_hooks.callbacks._terminal import print_above
from lightning_hooks.callbacks.health import HealthMonitor
from lightning_hooks.engine.recording.findings import RULE, cause_of, finding_of, write_finding
from lightning_hooks.health.finding import Cause
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
            print_above(trainer, partial(line_for, _line_of_failure(record, folder)))
        return
    cause = cause_of(record, folder)
    if _is_explained(our_callbacks(trainer), cause):
        return
    print_above(trainer, partial(block_for, block_of_cause(cause, [finding_of(record)])))
    if folder is not None:
        write_finding(record, folder)


def tell_in_loop(callbacks: Sequence[Any], record: FlightRecord, folder: Path | None) -> None:
    """Tell of a record of a plain loop, once; on standard error if no `HealthMonitor` of its list tells of it.

    Args:
        callbacks: those of the list.
        record: the record.
        folder: where it was written; None if it was not.
    """
    if record.failure is not None:
        if folder is not None:
            print(_line_of_failure(record, folder), file=sys.stderr, flush=True)
        return
    cause = cause_of(record, folder)
    if not _is_explained(callbacks, cause):
        block = block_of_cause(cause, [finding_of(record)])
        print(block_for(block, sys.stderr), file=sys.stderr, flush=True)


def _is_explained(callbacks: Iterable[Any], cause: Cause) -> bool:
    monitors = [each for each in callbacks if isinstance(each, HealthMonitor)]
    return any(monitor.explain(RULE, cause) for monitor in monitors)


def _line_of_failure(record: FlightRecord, folder: Path) -> str:
    assert record.failure is not None
    return f"The flight record of {record.failure.type} in step {record.step} is in {folder}."
