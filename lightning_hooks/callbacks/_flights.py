"""The flight of a callback in the fits of a Trainer: a recorder's rows, and what the callback tells of a fit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_hooks.callbacks._trainer import deferred
from lightning_hooks.callbacks._trainer_training import TrainerTraining
from lightning_hooks.engine.assembly import TRAIN, Contribution
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.recording.flight import Flight
from lightning_hooks.engine.recording.participant import RecordingParticipant
from lightning_hooks.engine.recording.record_folder import RecordFolder
from lightning_hooks.engine.recording.recorders import recorder_for
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rank_check import check_ranks_agree
from lightning_hooks.recorder.options import RecorderOptions
from lightning_hooks.recorder.record import FlightRecord

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks._run import LightningRun

Folder = Callable[[], RecordFolder]
Tell = Callable[["Trainer", FlightRecord, Path | None], None]


class Flights:
    """The flights of a callback: one for each fit.

    Args:
        owner: the class of the callback.
        options: what is recorded and kept.
        folder: returns, when the run is assembled, the function that returns the folder of the record; None to write nothing.
        tell: called with a record, once.

    Attributes:
        flight: of the current fit, or of the last one; None before the first.
    """

    def __init__(
        self,
        owner: str,
        options: RecorderOptions,
        folder: Callable[[Trainer, LightningRun], Folder | None],
        tell: Tell,
    ) -> None:
        self._owner, self._options, self._folder, self._tell = owner, options, folder, tell
        self.flight: Flight | None = None

    def contribution(self, trainer: Trainer, run: LightningRun, plan: Plan, label: str) -> Contribution:
        """What the recorder brings into a run that begins. Collective."""
        if trainer.world_size > 1:
            check_ranks_agree(plan, trainer.strategy.root_device)
        reads = partial(self._start, trainer, run)
        return Contribution(self._owner, label, {TRAIN: plan}, on_error="warn", names_modules=False, reader=reads)

    def _start(self, trainer: Trainer, run: LightningRun, observer: Observer, share: Share) -> Participant:
        training = TrainerTraining(trainer, run.model, accumulates=True)
        self.flight = Flight(
            training,
            self._folder(trainer, run),
            deferred(trainer, self._tell, None),
            self._options,
            recorder_for(observer, share, self._options.last, run.model.device),
        )
        return RecordingParticipant(observer, share, self.flight)

    def take(self, flight: Flight) -> None:
        """Keep the flight of a plain loop."""
        self.flight = flight

    def begin_batch(self, batch: Any, batch_idx: int) -> None:
        """Keep a reference to a batch that begins."""
        if self.flight is not None:
            self.flight.begin_batch(batch, batch_idx)

    def after_backward(self) -> None:
        """Explain a bad loss, now that its backward is over."""
        if self.flight is not None:
            self.flight.after_backward()

    def flush(self) -> None:
        """Look at the last step, because the training has ended."""
        if self.flight is not None:
            self.flight.flush()

    def fail(self, error: BaseException) -> None:
        """Record an exception that ends the run."""
        if self.flight is not None:
            self.flight.record_failure(error)

    def close(self) -> None:
        """Drop what keeps the model and batches alive; the record stays."""
        if self.flight is not None:
            self.flight.close()
