"""The participant of a flight recorder: it lets the recorder look at each point of a step, and the flight write a record."""

from __future__ import annotations

from collections.abc import Hashable

from torch.optim import Optimizer

from lightning_hooks.engine.participants.participant import Participant, PhaseMemo
from lightning_hooks.engine.recording.flight import Flight
from lightning_hooks.engine.recording.recorder import FoundIn
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share


class RecordingParticipant(Participant):
    """Lets a recorder look at the numbers that its observer has just measured. It joins after the reading of its share.

    Args:
        observer: measures the rows of the recorder.
        share: of the recorder.
        flight: writes the record.
    """

    reads_updates = True
    acts_before = True

    def __init__(self, observer: Observer, share: Share, flight: Flight) -> None:
        self._observer = observer
        self._share = share
        self._flight = flight

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "recorder" if stage == "train" and self._share.part.number in self._observer.due_shares else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._flight.begin_step(step)

    def begin_batch(self) -> None:
        self._flight.recorder.begin_batch()

    def look_at_loss(self) -> None:
        """Called when the loss is measured, before its backward."""
        if self._looks:
            self._record(self._flight.recorder.look_at_loss(self.loss_scale))

    def before_step(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        if self._looks:
            self._record(self._flight.recorder.look_before_step(self.loss_scale), optimizer)

    def after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        if self._looks:
            self._record(self._flight.recorder.look_after_update(optimizer, memo), optimizer)

    def end_step(self) -> None:
        if not self._share.stopped:
            self._record(self._flight.recorder.end_step(self.loss_scale))

    def before_publishing(self) -> None:
        if not self._share.stopped:
            self._flight.flush()
            self._share.stopped = self._flight.record is not None

    @property
    def _looks(self) -> bool:
        return not self._share.stopped and not self._observer.skips_capture()

    def _record(self, found_in: FoundIn | None, optimizer: Optimizer | None = None) -> None:
        if found_in is not None:
            # One record is written, so nothing more has to be measured for it.
            self._share.stopped = True
            self._flight.record_nonfinite(found_in, optimizer)
