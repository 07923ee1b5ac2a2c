"""Flight: what a recorder keeps of a run, and the one record that it writes when something goes wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from lightning_hooks.engine.recording.batches import MOST_BYTES, BatchReferences
from lightning_hooks.engine.recording.explained_record import explained_record
from lightning_hooks.engine.recording.fault_batches import batches_with_fault, note_of_sum, summed
from lightning_hooks.engine.recording.first_record import record_of_failure, record_of_nonfinite
from lightning_hooks.engine.recording.record_folder import RecordFolder
from lightning_hooks.engine.recording.record_writer import RecordWriter
from lightning_hooks.engine.recording.recorder import FoundIn, Recorder
from lightning_hooks.engine.recording.starting_numbers import StartingNumbers
from lightning_hooks.engine.recording.step_rerun import StepRerun
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.errors import printable
from lightning_hooks.recorder.options import RecorderOptions
from lightning_hooks.recorder.record import FlightRecord
from lightning_hooks.snapshot.lending import UntouchableError

Report = Callable[[FlightRecord, Path | None], None]


class Flight:
    """Keeps the last batches of a run by reference, and writes one record.

    Args:
        training: runs a step again.
        folder: returns the folder of the record; None to write nothing.
        report: called once with the whole record, and with its folder.
        options: what is recorded and kept.
        recorder: notes the calls.

    Attributes:
        record: the record; None until something went wrong.
    """

    def __init__(
        self,
        training: Training,
        folder: Callable[[], RecordFolder] | None,
        report: Report,
        options: RecorderOptions,
        recorder: Recorder,
    ) -> None:
        self.recorder = recorder
        self.record: FlightRecord | None = None
        self._training = training
        self._report = report
        self._options = options
        # Keep only the last batch of a model on a device, whose memory is scarce and whose steps are not run again, and of a
        # flight that neither runs a step again nor saves its batch.
        is_used = options.autopsy or options.batch
        self._batches = BatchReferences(MOST_BYTES if recorder.is_immediate and is_used else 0, with_generators=is_used)
        self._writer = RecordWriter(training, folder, options.keeps)
        self._rerun = StepRerun(training, recorder, options)
        self._starting_numbers: StartingNumbers | None = None
        self._waits_for_backward = False
        self._is_closed = False

    @property
    def path(self) -> Path | None:
        """The folder of the record; None until it is written, and in a process beside that which writes it."""
        return self._writer.path

    def begin_step(self, step: int) -> None:
        """Note that a step begins; before the first one, look at all parameters and buffers."""
        if self._starting_numbers is None:
            self._starting_numbers = StartingNumbers(self._training.model)
        self.recorder.begin_step(step)

    def begin_batch(self, batch: Any, batch_idx: int) -> None:
        """Keep a reference to a batch, and the states of the generators if its step may run again."""
        if self.record is None:
            marks = self.recorder.marks
            # The numbers of a device are looked at one step late, whether or not an optimizer has stepped since.
            after_update = marks.after_update if self.recorder.is_immediate else marks.micro_batch == 0
            self._batches.keep(batch, batch_idx, marks.step, marks.micro_batch, after_update=after_update)

    def flush(self) -> None:
        """Look at the last step that has ended, because its view is published or the training is over."""
        if self.record is None and not self._is_closed:
            self._warn_if_raised(self._look_at_last_step)

    def close(self) -> None:
        """Drop what keeps the model and batches alive; the record stays."""
        self._batches.close()
        self._is_closed = True
        # Whoever keeps the flight for its record must not keep the model alive.
        for name in ("_training", "recorder", "_rerun"):
            vars(self).pop(name, None)
        self._writer.close()
        self._report = _report_nothing

    def record_nonfinite(self, found_in: FoundIn, optimizer: Optimizer | None) -> None:
        """Record the step under way, in which a number is not finite. An error of this is a warning: the training goes on.

        A bad loss is found before its backward, which still needs the graph. So the step runs again after the backward.

        Args:
            found_in: the tensors that have the number.
            optimizer: whose update is under way; None for the loss.
        """
        if self.record is not None or "nonfinite" not in self._options.on:
            return

        def write() -> None:
            assert self._starting_numbers is not None
            known = (self.recorder.recorded(), self._training, self._batches.of, self._starting_numbers)
            self._write(record_of_nonfinite(*known, found_in, optimizer, self._options.last))

        self._warn_if_raised(write)
        if found_in == "loss" and self._batches.since_update and self.recorder.is_immediate:
            self._waits_for_backward = True
        else:
            self._finish(found_in, optimizer)

    def after_backward(self) -> None:
        """Explain a bad loss, now that its backward is over."""
        if self._waits_for_backward:
            self._finish("loss", None)

    def record_failure(self, error: BaseException) -> None:
        """Record an exception that ends the run, unless a number that was not finite is recorded."""
        self.flush()
        if self.record is None and "exception" in self._options.on:
            self._warn_if_raised(
                lambda: self._write(record_of_failure(self.recorder.recorded(), self._training, error, self._options.last))
            )
            self._finish(None, None)
        elif self._waits_for_backward:
            self._finish(None, None)

    def _look_at_last_step(self) -> None:
        found_in = self.recorder.flush()
        if found_in is not None:
            self.record_nonfinite(found_in, None)

    def _finish(self, found_in: FoundIn | None, optimizer: Optimizer | None) -> None:
        """Explain the record by a second run of the step, if a number is not finite, and report it."""
        self._waits_for_backward = False
        if self.record is not None and found_in is not None:
            self._warn_if_raised(lambda: self._explain(found_in, optimizer))
        record = self.record
        if record is not None and not self._writer.is_written_elsewhere:
            self._warn_if_raised(lambda: self._report(record, self.path))

    def _explain(self, found_in: FoundIn, optimizer: Optimizer | None) -> None:
        record = self.record
        assert record is not None and self._starting_numbers is not None
        recorded = self.recorder.recorded()
        batches = batches_with_fault(record, found_in, self._batches, self.recorder)
        refusal = self._rerun.refusal(record, found_in, batches)
        rerun = None
        if not refusal:
            try:
                rerun = self._rerun.run(found_in, batches, optimizer)
            except UntouchableError as error:
                refusal = str(error)
        if refusal:
            record = replace(record, notes=(*record.notes, f"The step was not run again: {refusal}."))
        elif rerun is not None:
            known = (recorded, summed(recorded, self._batches), self._training, self._starting_numbers)
            record = explained_record(record, rerun, *known)
        if rerun is None or rerun.kept is None or not rerun.shown.reproduced:
            record = replace(record, notes=(*record.notes, *note_of_sum(record, found_in, recorded, self._batches)))
        self._write(record)

    def _write(self, record: FlightRecord) -> None:
        place = record.place
        kept = None if place is None else self._batches.of(place.step, place.micro_batch)
        if kept is not None and "batch_idx" in record.context:
            record = replace(record, context={**record.context, "batch_idx": kept.batch_idx})
        # Keep the record before writing it: it is also there if the disk is full.
        self.record = record
        self.record = self._writer.write(record, kept, self._batches.reason)

    def _warn_if_raised(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            if isinstance(error, OSError):
                # The disk is full or gone. Write nothing more, so that one warning tells of it.
                self._writer.stop()
            message = f"the flight record is not complete: {type(error).__name__}: {error}; training continues"
            warnings.warn(printable(message), stacklevel=2)


def _report_nothing(record: FlightRecord, folder: Path | None) -> None:
    """Stands for `report` when the run is over."""
