"""Flight: what a recorder keeps of a run, and the one record that it writes when something goes wrong."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch.optim import Optimizer

from lightning_hooks.engine.recording.autopsy import Autopsy, autopsy
from lightning_hooks.engine.recording.batches import BatchReferences, KeptBatch
from lightning_hooks.engine.recording.call_recorder import Moment, Recorder
from lightning_hooks.engine.recording.first_look import ended, growth_of, seen
from lightning_hooks.engine.recording.record_folder import RecordFolder, save_beside, write_of_rank, write_texts
from lightning_hooks.engine.recording.restoring import restored
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.errors import listed, printable
from lightning_hooks.recorder.options import RecorderOptions
from lightning_hooks.recorder.record import FlightRecord, Verdict
from lightning_hooks.recorder.verdicts import message_of
from lightning_hooks.snapshot.generators import Generators
from lightning_hooks.snapshot.lending import UntouchableError
from lightning_hooks.tensor_kinds import is_sharded

_UNKNOWN_PARAMETERS: Final = (
    "The update, run again, gave finite numbers. The parameters that it read are gone: those that are not finite now were 0."
)
_LARGEST_PARAMETERS: Final = (
    "the parameters that the update read are gone: it gives finite numbers if those that are not finite now are 0, and "
    "overflows in this operation if they are the largest number of their type"
)

Tell = Callable[[FlightRecord, Path | None], None]


class Flight:
    """Keeps the last batches of a run by reference, and writes one record.

    Args:
        training: runs a step again.
        folder: returns the folder of the record; None to write nothing.
        tell: called once with the whole record, and with its folder.
        options: what is recorded and kept.
        recorder: notes the calls.

    Attributes:
        record: the record; None until something went wrong.
        path: the folder of the record; None until it is written, and in a process beside that which writes it.
    """

    def __init__(
        self,
        training: Training,
        folder: Callable[[], RecordFolder] | None,
        tell: Tell,
        options: RecorderOptions,
        recorder: Recorder,
    ) -> None:
        self.recorder = recorder
        self.record: FlightRecord | None = None
        self.path: Path | None = None
        self._training = training
        self._folder = folder
        self._tell = tell
        self._options = options
        self._batches = BatchReferences()
        self._begun: deque[tuple[int, Generators]] = deque(maxlen=2)  # the steps of the kept batches, and the generators
        self._explains_later = False
        self._is_second = False  # whether another process writes the record

    @property
    def last_batch(self) -> KeptBatch | None:
        """The last batch of the step that is looked at; None if it is not known."""
        pairs = zip(reversed(self._batches.kept), reversed(self._begun), strict=True)
        return next((kept for kept, (step, _) in pairs if step == self.recorder.step), None)

    @property
    def generators(self) -> Generators | None:
        """The states of the generators when that batch began."""
        return next((each for step, each in reversed(self._begun) if step == self.recorder.step), None)

    def begin_batch(self, batch: Any, batch_idx: int) -> None:
        """Keep a reference to a batch, and the states of the generators."""
        if self.record is None:
            self._batches.keep(batch, batch_idx)
            self._begun.append((self.recorder.step, Generators(self._begun[-1][1] if self._begun else None)))

    def flush(self) -> None:
        """Look at the last step, because the training has ended."""
        if self.record is None:
            self._guarded(self._look_at_last)

    def _look_at_last(self) -> None:
        moment = self.recorder.flush()
        if moment is not None:
            self.strike(moment, None)

    def close(self) -> None:
        """Drop what keeps the model and batches alive; the record stays."""
        self._batches.close()
        self._begun.clear()
        # Whoever keeps the flight for its record must not keep the model alive.
        for name in ("_training", "recorder"):
            vars(self).pop(name, None)
        self._folder, self._tell = None, _tell_nobody

    def strike(self, moment: Moment, optimizer: Optimizer | None) -> None:
        """Record the step under way, in which a number is not finite. An error of this is a warning: the training goes on.

        A loss is seen before its backward, whose graph waits for it. The step runs again when that is over.
        """
        if self.record is not None or "nonfinite" not in self._options.on:
            return
        self._guarded(
            lambda: self._write(seen(self.recorder, self._training, self.last_batch, moment, optimizer, self._options.last))
        )
        if moment == "loss" and self.last_batch is not None and self.recorder.is_immediate:
            self._explains_later = True
        else:
            self._end(moment, optimizer)

    def after_backward(self) -> None:
        """Explain a bad loss, now that its backward is over."""
        if self._explains_later:
            self._end("loss", None)

    def fail(self, error: BaseException) -> None:
        """Record an exception that ends the run, unless a number that was not finite is recorded."""
        self.flush()
        if self.record is None and "exception" in self._options.on:
            self._guarded(lambda: self._write(ended(self.recorder, self._training, error, self._options.last)))
            self._end(None, None)
        elif self._explains_later:
            self._end(None, None)

    def _end(self, moment: Moment | None, optimizer: Optimizer | None) -> None:
        self._explains_later = False
        if self.record is not None and moment is not None:
            self._guarded(lambda: self._explain(moment, optimizer))
        record = self.record
        if record is not None and not self._is_second:
            self._guarded(lambda: self._tell(record, self.path))

    def _guarded(self, does: Callable[[], None]) -> None:
        try:
            does()
        except Exception as error:
            if isinstance(error, OSError):
                # The disk is full or gone. Write nothing more, so that one warning tells of it.
                self._folder = self.path = None
            said = f"the flight record is not complete: {type(error).__name__}: {error}; training continues"
            warnings.warn(printable(said), stacklevel=2)

    def _write(self, record: FlightRecord) -> None:
        """Write a record into the folder; the first time, claim the folder and save batch and weights beside the record."""
        self.record = record
        if self._folder is None or self._is_second:
            return
        if self.path is None:
            path, is_first = self._folder().claim(yields=record.verdict is Verdict.ALL_REDUCE)
            if self._training.world_size > 1:
                write_of_rank(record, path, self._training.rank)
            self._is_second = not is_first
            if not is_first:
                return
            self.path = path
            # Write the record before the files beside it: an error while saving a batch must not prevent the record.
            write_texts(record, path)
            kept, generators = self.last_batch, self.generators
            self.record = record = save_beside(record, path, self._training, kept, generators, self._options.keeps)
        write_texts(record, self.path)

    def _explain(self, moment: Moment, optimizer: Optimizer | None) -> None:
        """Run the step again to name the operation, and write the record with what that shows."""
        record = self.record
        assert record is not None
        reason = self._why_not(moment, record)
        if reason:
            self._write(replace(record, notes=(*record.notes, f"The step was not run again: {reason}.")))
            return
        try:
            found = self._run_update(optimizer) if moment == "parameters" else self._run_step()
        except UntouchableError as error:
            self._write(replace(record, notes=(*record.notes, f"The step was not run again: {error}.")))
            return
        if found is not None:
            self._write(self._explained(record, found))

    def _explained(self, record: FlightRecord, found: Autopsy) -> FlightRecord:
        notes = (*record.notes, *_of_compiled(record), *found.notes)
        place = found.place(record.step, self.recorder.micro_batch, self._training.rank, self._training.world_size)
        if found.verdict is None or place is None:
            # A run that raised or took too long shows nothing about the step.
            if found.notes:
                return replace(record, notes=notes)
            # The parameters that the update read are overwritten, so its second run need not fail.
            if record.verdict is Verdict.UPDATE:
                return replace(record, reproduced=False, notes=(*notes, _UNKNOWN_PARAMETERS))
            message = message_of(Verdict.NOT_REPRODUCED, record.place, None)
            return replace(record, verdict=Verdict.NOT_REPRODUCED, reproduced=False, message=message, notes=notes)
        verdict = Verdict.SCALER if self._is_beyond_the_scaler(found) else found.verdict
        told = replace(
            record,
            verdict=verdict,
            place=place,
            message=message_of(verdict, place, found.operation, self.recorder.finite_until),
            reproduced=found.reproduced,
            operation=found.operation,
            inputs=found.inputs or record.inputs,
            notes=notes,
        )
        return replace(told, growth=growth_of(told, self.recorder) or record.growth)

    def _is_beyond_the_scaler(self, found: Autopsy) -> bool:
        """Whether gradients exceed the range of float16 at a loss scale at which they should not."""
        scaler, result = self._training.scaler, found.result
        is_scaled = scaler is not None and scaler.is_enabled() and found.verdict is Verdict.BACKWARD
        return is_scaled and result is not None and result.dtype == "float16" and not result.nan

    def _why_not(self, moment: Moment, record: FlightRecord) -> str:
        """Why the step cannot be run again; empty if it can."""
        if not self._options.autopsy:
            return "autopsy is False"
        if not self.recorder.is_immediate:
            return "the numbers came from a device one step late, and the weights have changed since"
        if record.verdict is Verdict.ALL_REDUCE:
            return "each gradient that this rank computed is finite"
        if moment == "parameters":
            parameters = self._training.model.parameters()
            return "an update of sharded parameters may wait for other ranks" if any(map(is_sharded, parameters)) else ""
        refused = self._training.refusal()
        if refused:
            return refused
        if self.recorder.steps_in_batch and not self._training.is_manual:
            return "an optimizer has already changed parameters in this batch"
        if record.place is not None and record.place.micro_batch != self.recorder.micro_batch:
            return "it happened in an earlier batch of the step"
        if self.last_batch is None:
            return "the batch is not known in a loop of your own"
        changed = self.last_batch.changed()
        return f"{', '.join(changed)} was changed in place since the step began" if changed else ""

    def _run_step(self) -> Autopsy | None:
        training, kept = self._training, self.last_batch
        if kept is None:
            return None
        step = partial(training.differentiate, kept.batch, kept.batch_idx, self.recorder.steps_in_batch)
        with training.quiet(), restored(training.model, scaler=training.scaler):
            generators = self.generators
            if generators is not None:
                generators.restore()
            return autopsy(training.model, step, batch=kept.batch, optimizers=training.optimizers, limit=self._options.limit)

    def _run_update(self, optimizer: Optimizer | None) -> Autopsy | None:
        """Run the update again with the learning rate and the state that it left.

        The parameters that it had are gone: those that are not finite are 0 in this run. What makes them bad again is the rate,
        or the state. If nothing does, they were too large themselves: a second run sets them to the largest finite number.
        """
        if optimizer is None:
            return None
        found = self._run_update_from(optimizer, 0.0)
        if found.reproduced or found.notes:
            return found
        found = self._run_update_from(optimizer, 1.0)
        if found.operation is None:
            return found
        # What this run read are numbers of its own, not of the training.
        operation = replace(found.operation, inputs=())
        return replace(found, operation=operation, inputs=(), notes=(*found.notes, _LARGEST_PARAMETERS))

    def _run_update_from(self, optimizer: Optimizer, share: float) -> Autopsy:
        """Run an update with the parameters that are not finite at a share of the largest number of their type."""
        training = self._training
        gradients = [(each, each.grad) for group in optimizer.param_groups for each in group["params"]]
        with training.quiet(), restored(training.model, [optimizer], updates=True):
            with torch.no_grad():
                for parameter, gradient in gradients:
                    largest = share * torch.finfo(parameter.dtype).max
                    parameter.nan_to_num_(largest, largest, -largest)
                    parameter.grad = gradient
            step = _without_hooks(type(optimizer).step)
            return autopsy(
                training.model, _nothing, update=lambda: step(optimizer), optimizers=[optimizer], limit=self._options.limit
            )


def _of_compiled(record: FlightRecord) -> tuple[str, ...]:
    names = record.context.get("compiled") or ()
    shown = listed([name or "the model" for name in names], 3)
    return (f"compiled modules ran eagerly when the step was run again: {shown}",) if names else ()


def _without_hooks(step: Any) -> Any:
    """The step of an optimizer's class without what torch puts around it to call the hooks of optimizers."""
    # Dynamo wraps the wrapper again, so there may be two.
    while getattr(step, "hooked", False) and hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    return step


def _tell_nobody(record: FlightRecord, folder: Path | None) -> None:
    """Stands for `tell` when the run is over."""


def _nothing() -> None:
    """Stands for the forward and backward of a step of which only the update runs again."""
