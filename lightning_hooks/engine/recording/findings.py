"""A flight record as a finding with its cause, so that it is seen wherever findings are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lightning_hooks.health.finding import Cause, Event, Finding
from lightning_hooks.health.journal import Journal
from lightning_hooks.health.rule import Severity, Symptom
from lightning_hooks.recorder.cause_words import CAUSE_WORDS, cause_name
from lightning_hooks.recorder.record import FlightRecord

RULE: Final = "NonFinite"


def finding_of(record: FlightRecord) -> Finding:
    """The finding of a record.

    Example:
        >>> from lightning_hooks.recorder.record import Verdict
        >>> finding_of(FlightRecord(Verdict.FORWARD, 7, message="head gave NaN.")).message
        'head gave NaN.'
    """
    place = record.place
    row, tensor = (place.module, place.tensor) if place is not None else ("", "")
    count = float(place.result.nonfinite) if place is not None and place.result is not None else 1.0
    operation = f"; the operation is {record.operation.name}" if record.operation is not None else ""
    symptom = Symptom(
        row,
        tensor=tensor,
        step=record.step,
        measured=count,
        threshold=0.0,
        text=f"the flight record says: {record.verdict.replace('_', ' ')}{operation}",
    )
    return Finding(
        RULE,
        rows=(row,),
        tensor=tensor,
        first_step=record.step,
        last_step=record.step,
        severity=Severity.CRITICAL,
        evidence=(symptom,),
        message=record.message,
        next_steps=CAUSE_WORDS[record.verdict].next_steps if record.verdict in CAUSE_WORDS else (),
    )


def cause_of(record: FlightRecord, folder: Path | None) -> Cause:
    """The cause that a record names.

    Args:
        record: the record.
        folder: where it was written; None if it was not.
    """
    finding = finding_of(record)
    steps = finding.next_steps
    if folder is not None:
        what = ["the calls before it"] if record.operation is None else ["the operation", "what it read"]
        what += ["the command that replays the step"] if "batch" in record.files else []
        steps = (*steps, f"Read {folder / 'record.md'}: {', '.join(what)}.")
    return Cause(
        cause_name(record.verdict),
        record.message,
        (finding.fingerprint,),
        steps,
        confidence="certain" if record.operation is not None else "likely",
        severity=Severity.CRITICAL,
        first_step=record.step,
        numbers=(finding.number,),
    )


def write_finding(record: FlightRecord, folder: Path) -> None:
    """Write a journal that has only the finding of a record, beside the folder of the record.

    For a run without a `HealthMonitor`, which has a journal of its own.
    """
    journal = Journal(folder.parent)
    events = [Event("begin", record.step), Event("new", record.step, finding_of(record))]
    journal.write([*events, Event("cause", record.step, cause=cause_of(record, folder)), Event("end", record.step)])
    journal.close()
