"""A record with what the second run of its step has shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lightning_hooks.engine.recording.divisors import zero_divisor
from lightning_hooks.engine.recording.explaining import Autopsy
from lightning_hooks.engine.recording.first_record import growth_of
from lightning_hooks.engine.recording.recorded_step import RecordedStep
from lightning_hooks.engine.recording.starting_numbers import StartingNumbers
from lightning_hooks.engine.recording.step_rerun import Rerun
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.errors import listed
from lightning_hooks.recorder.record import FlightRecord, Place, Verdict
from lightning_hooks.recorder.verdicts import Known, message_of

_UNKNOWN_PARAMETERS: Final = (
    "The update, run again, gave finite numbers. The parameters that it read are gone: those that are not finite now were 0, "
    "or the largest number of their type. Code between this update and the one before may have changed them."
)
_FINITE_ALONE: Final = (
    "{ran} of the {summed} batches since the last update have finite gradients when each runs again alone: their sum, another "
    "batch, or code after a backward pass, such as clipping, made the number."
)


def explained_record(
    record: FlightRecord, rerun: Rerun, recorded: RecordedStep, summed: int, training: Training, start: StartingNumbers
) -> FlightRecord:
    """The record with the verdict and the operation of the second run.

    Args:
        record: as it was written before that run.
        rerun: the result of the run.
        recorded: the step as it was recorded.
        summed: the number of batches whose gradients the update reads.
        training: the model, and its loss scaler.
        start: knows what was not finite when the run began.
    """
    shown, kept = rerun.shown, rerun.kept
    notes = (*record.notes, *_note_of_compiled(record), *shown.notes)
    at = (record.step, recorded.micro_batch) if kept is None else (kept.step, kept.micro_batch)
    place = shown.place(*at, training.rank, training.world_size)
    if shown.verdict is None or place is None:
        # A run that raised or took too long shows nothing about the step.
        if not shown.has_ended:
            return replace(record, notes=notes)
        # The update has overwritten the parameters that it read, so its second run need not fail.
        if record.verdict is Verdict.UPDATE:
            return replace(record, reproduced=False, notes=(*notes, _UNKNOWN_PARAMETERS))
        # All that is known of a gradient alone is that it was not finite when the optimizer read it.
        is_changed = record.place is not None and record.place.tensor == "grad"
        if is_changed and summed > 1:
            return replace(record, reproduced=False, notes=(*notes, _FINITE_ALONE.format(ran=rerun.finite, summed=summed)))
        verdict = Verdict.GRADIENTS if is_changed else Verdict.NOT_REPRODUCED
        message = message_of(verdict, record.place, None, Known(is_shown=True))
        return replace(record, verdict=verdict, reproduced=False, message=message, notes=notes)
    verdict = Verdict.SCALER if _is_beyond_scaler(shown, training) else shown.verdict
    explained = replace(
        record,
        verdict=verdict,
        place=place,
        message=message_of(verdict, place, shown.operation, _known(shown, place, recorded, training, start)),
        reproduced=shown.reproduced,
        operation=shown.operation,
        inputs=shown.inputs or record.inputs,
        notes=notes,
    )
    return replace(explained, growth=growth_of(explained, recorded) or record.growth)


def _known(shown: Autopsy, place: Place, recorded: RecordedStep, training: Training, start: StartingNumbers) -> Known:
    is_noticed = {"loss": False, "grad": True}
    return Known(
        # A step that did not end shows nothing of its loss, nor what the bad number has reached.
        loss=is_noticed.get(shown.noticed.partition(" ")[0], recorded.is_loss_finite),
        is_shown=bool(shown.noticed),
        finite_until=recorded.last_finite.step_of(training.tensor_of(place.module)),
        since_start=place.module in start.nonfinite,
        divisor=zero_divisor(training.optimizers, training.tensor_of(place.module)),
        state=(place.tensor.removeprefix("state."),) if place.tensor.startswith("state.") else (),
    )


def _is_beyond_scaler(shown: Autopsy, training: Training) -> bool:
    """Whether gradients exceed the range of float16 at a loss scale at which they should not."""
    scaler, result = training.scaler, shown.result
    is_scaled = scaler is not None and scaler.is_enabled() and shown.verdict is Verdict.BACKWARD
    # A slope that is infinite in double precision too is infinite at any loss scale.
    return (
        is_scaled and result is not None and result.dtype == "float16" and not result.nan and shown.exceeds_range is not False
    )


def _note_of_compiled(record: FlightRecord) -> tuple[str, ...]:
    names = record.context.get("compiled") or ()
    modules = listed([name or "the model" for name in names], 3)
    return (f"compiled modules ran eagerly when the step was run again: {modules}",) if names else ()
