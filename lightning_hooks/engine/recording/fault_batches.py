"""Which batches may have made a bad number: one, if the calls of layers tell it, or all whose gradients the update reads."""

from __future__ import annotations

from lightning_hooks.engine.recording.batches import BatchReferences, KeptBatch
from lightning_hooks.engine.recording.recorded_step import RecordedStep
from lightning_hooks.engine.recording.recorder import FoundIn, Recorder
from lightning_hooks.recorder.record import FlightRecord


def batches_with_fault(
    record: FlightRecord, found_in: FoundIn, batches: BatchReferences, recorder: Recorder
) -> tuple[KeptBatch, ...]:
    """The batches that run again until one of them gives a bad number, the earliest first.

    Args:
        record: as the calls of layers tell it.
        found_in: the tensors in which the first bad number was found.
        batches: those since the last update.
        recorder: of the run.
    """
    place = record.place
    if place is None:
        return ()
    # An optimizer that has stepped in this batch has changed the parameters that the batches before have read.
    if found_in == "gradients" and place.tensor == "grad" and not recorder.marks.updates:
        return batches.since_update
    kept = batches.of(place.step, place.micro_batch)
    return () if kept is None else (kept,)


def summed(recorded: RecordedStep, batches: BatchReferences) -> int:
    """The number of batches whose gradients the update reads; 0 if the loop does not give its batches."""
    if not batches.since_update:
        return 0
    return len(batches.since_update) + batches.dropped if recorded.is_immediate else recorded.micro_batch + 1


def note_of_sum(record: FlightRecord, found_in: FoundIn, recorded: RecordedStep, batches: BatchReferences) -> tuple[str, ...]:
    """A note if several batches were summed, and it is not known which of them made the number."""
    place = record.place
    is_known = recorded.is_immediate and (found_in == "loss" or (place is not None and place.gap is not None))
    many = summed(recorded, batches)
    if is_known or many <= 1 or "batch" not in record.files:
        return ()
    return (f"The update reads the sum over {many} batches, and the batch that is kept is the last of them.",)
