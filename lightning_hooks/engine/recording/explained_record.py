"""A record with what the second run of its step has shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lightning_hooks.engine.recording.explaining import Autopsy
from lightning_hooks.engine.recording.first_record import growth_of
from lightning_hooks.engine.recording.recorded_step import RecordedStep
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.errors import listed
from lightning_hooks.recorder.record import FlightRecord, Verdict
from lightning_hooks.recorder.verdicts import message_of

_UNKNOWN_PARAMETERS: Final = (
    "The update, run again, gave finite numbers. The parameters that it read are gone: those that are not finite now were 0."
)


def explained_record(record: FlightRecord, shown: Autopsy, recorded: RecordedStep, training: Training) -> FlightRecord:
    """The record with the verdict and the operation of the second run.

    Args:
        record: as it was written before that run.
        shown: the result of the run.
        recorded: the step as it was recorded.
        training: the model, and its loss scaler.
    """
    notes = (*record.notes, *_note_of_compiled(record), *shown.notes)
    place = shown.place(record.step, recorded.micro_batch, training.rank, training.world_size)
    if shown.verdict is None or place is None:
        # A run that raised or took too long shows nothing about the step.
        if shown.notes:
            return replace(record, notes=notes)
        # The update has overwritten the parameters that it read, so its second run need not fail.
        if record.verdict is Verdict.UPDATE:
            return replace(record, reproduced=False, notes=(*notes, _UNKNOWN_PARAMETERS))
        message = message_of(Verdict.NOT_REPRODUCED, record.place, None)
        return replace(record, verdict=Verdict.NOT_REPRODUCED, reproduced=False, message=message, notes=notes)
    verdict = Verdict.SCALER if _is_beyond_scaler(shown, training) else shown.verdict
    explained = replace(
        record,
        verdict=verdict,
        place=place,
        message=message_of(verdict, place, shown.operation, recorded.finite_until),
        reproduced=shown.reproduced,
        operation=shown.operation,
        inputs=shown.inputs or record.inputs,
        notes=notes,
    )
    return replace(explained, growth=growth_of(explained, recorded) or record.growth)


def _is_beyond_scaler(shown: Autopsy, training: Training) -> bool:
    """Whether gradients exceed the range of float16 at a loss scale at which they should not."""
    scaler, result = training.scaler, shown.result
    is_scaled = scaler is not None and scaler.is_enabled() and shown.verdict is Verdict.BACKWARD
    return is_scaled and result is not None and result.dtype == "float16" and not result.nan


def _note_of_compiled(record: FlightRecord) -> tuple[str, ...]:
    names = record.context.get("compiled") or ()
    modules = listed([name or "the model" for name in names], 3)
    return (f"compiled modules ran eagerly when the step was run again: {modules}",) if names else ()
