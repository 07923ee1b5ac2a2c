"""A flight record as a finding with its cause, so that it is seen wherever findings are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lightning_hooks.health.finding import Cause, Event, Finding
from lightning_hooks.health.journal import Journal
from lightning_hooks.health.rule import Severity, Symptom
from lightning_hooks.recorder.record import FlightRecord, Verdict

RULE: Final = "NonFinite"
_NEXT: Final = {
    Verdict.BATCH: ("Look at the sample in the batch that was kept; filter such samples, or fill in what is missing.",),
    Verdict.WEIGHTS: ("Resume from a checkpoint before this step: weights that are not finite never recover.",),
    Verdict.FORWARD: ("Bound what the operation reads: add a small number, clamp it, or compute it in a wider dtype.",),
    Verdict.BACKWARD: (
        "The value is finite and its slope is not: add a small number under a root or norm, or choose the safe argument with "
        "torch.where before the operation, not after it.",
    ),
    Verdict.UPDATE: ("Look at the learning rate of this step, and at the state of the optimizer that the record lists.",),
    Verdict.GRADIENTS: (
        "Look at what changes gradients between the backward pass and the update: clipping, on_before_optimizer_step, the step "
        "of an optimizer of your own. A norm that is 0 must not divide them.",
    ),
    Verdict.ALL_REDUCE: ("Look at the records of the other ranks: one of them has the first bad number.",),
    Verdict.NOT_REPRODUCED: ("Run the step again elsewhere; if it stays finite there, suspect the machine.",),
}


def finding_of(record: FlightRecord) -> Finding:
    """The finding of a record.

    Example:
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
        next_steps=_NEXT.get(record.verdict, ()),
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
    words = "".join(word.capitalize() for word in record.verdict.split("_"))
    return Cause(
        f"FirstBadNumber{words}",
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
