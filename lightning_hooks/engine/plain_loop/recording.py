"""The flight recorder of a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.engine.assembly import TRAIN, Contribution
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.engine.recording.flight import Flight, Report
from lightning_hooks.engine.recording.participant import RecordingParticipant
from lightning_hooks.engine.recording.record_folder import RecordFolder
from lightning_hooks.engine.recording.recorded_rows import plan_of
from lightning_hooks.engine.recording.recorders import recorder_for
from lightning_hooks.engine.rerun.plain import PlainTraining
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.recorder.options import RecorderOptions


class RecorderPart(LoopPart):
    """A flight recorder in a block.

    Only the loop itself has the batch and can run its step again, so the trail of calls names the module. An update is run
    again.

    Args:
        run: the block.
        owner: the class of the callback.
        options: of the recorder.
        folder: where `flight_record/` goes; None to write nothing.
        label: how messages name the callback.
        takes: called with the flight, which writes the record, when the run is assembled.
        tell: called with the record, and with its folder if it was written.
    """

    def __init__(
        self,
        run: LoopRun,
        owner: str,
        options: RecorderOptions,
        folder: Path | None,
        label: str,
        takes: Callable[[Flight], None],
        tell: Report,
    ) -> None:
        plan = plan_of(run.model, label)
        reads = self._participant
        super().__init__(Contribution(owner, label, {TRAIN: plan}, on_error="warn", names_modules=False, reader=reads))
        self._run: LoopRun | None = run
        self._options, self._folder, self._takes, self._tell = options, folder, takes, tell
        self._flight: Flight | None = None

    def _participant(self, observer: Observer, share: Share) -> Participant:
        assert self._run is not None
        training = PlainTraining(self._run.model, partial(_optimizers_of, self._run))
        where = None if self._folder is None else partial(RecordFolder, self._folder)
        recorder = recorder_for(observer, share, self._options.last, self._run.device)
        flight = Flight(training, where, self._tell, self._options, recorder)
        self._flight = flight
        self._takes(flight)
        return RecordingParticipant(observer, share, flight)

    @override
    def leave(self, error: BaseException | None) -> None:
        if self._flight is not None:
            self._flight.flush() if error is None else self._flight.record_failure(error)

    @override
    def close(self, error: BaseException | None) -> None:
        self._run = None
        if self._flight is not None:
            self._flight.close()


def _optimizers_of(run: LoopRun) -> Sequence[Optimizer]:
    return run.optimizers
