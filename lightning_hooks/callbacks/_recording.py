"""Recording: the job of a `FlightRecorder`: reads calls as they happen, and gives the flight what it asks of a Trainer."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from torch import nn
from typing_extensions import override

from lightning_hooks.callbacks._checks import Earlier
from lightning_hooks.callbacks._job import Job
from lightning_hooks.callbacks._record_telling import tell_record
from lightning_hooks.callbacks._trainer import deferred, is_quick
from lightning_hooks.callbacks._trainer_training import TrainerTraining
from lightning_hooks.engine.assembly import Contribution
from lightning_hooks.engine.inspecting.match_report import MatchLine, plan_report
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.recording import RecorderPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.engine.recording.flight import Flight
from lightning_hooks.engine.recording.participant import RecordingParticipant
from lightning_hooks.engine.recording.record_folder import RecordFolder
from lightning_hooks.engine.recording.recorded_rows import plan_of
from lightning_hooks.engine.recording.recorder import Recorder
from lightning_hooks.engine.recording.recorders import recorder_for
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.errors import RuleError
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rank_check import check_ranks_agree
from lightning_hooks.rules.fields import check_local

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer
    from lightning_hooks.callbacks._run import LightningRun
    from lightning_hooks.callbacks.recorder import FlightRecorder


class Recording(Job["FlightRecorder", Plan]):
    """The job of a `FlightRecorder`.

    Attributes:
        flight: of the current fit, or of the last one; None before the first.
    """

    def __init__(self, owner: FlightRecorder) -> None:
        super().__init__(owner)
        self.flight: Flight | None = None

    @override
    def for_copy(self) -> Self:
        copied = super().for_copy()
        copied.flight = None
        return copied

    @override
    def resolve(self, model: nn.Module, trainer: Trainer | None = None, earlier: Earlier | None = None) -> Plan:
        return plan_of(model, self.label)

    @override
    def lines(self, resolved: Plan) -> list[MatchLine]:
        return plan_report(resolved)

    @property
    @override
    def rules(self) -> str:
        return "the recorder's rules"

    @override
    def contribute(self, trainer: Trainer, run: LightningRun, resolved: Plan) -> Contribution:
        if trainer.world_size > 1:
            check_ranks_agree(resolved, trainer.strategy.root_device)
        return Contribution(
            type(self.owner).__name__,
            self.label,
            {"train": resolved},
            on_error="warn",
            names_modules=False,
            reader=partial(self._start_recording, trainer, run),
        )

    @override
    def in_loop(self, run: LoopRun) -> LoopPart:
        given = self.owner.logdir
        folder = run.folder if given is None else Path(given).expanduser().resolve()
        return RecorderPart(run, self.owner._options, folder, self.label, self._take_flight)

    def _take_flight(self, flight: Flight) -> None:
        self.flight = flight

    def _start_recording(self, trainer: Trainer, run: LightningRun, observer: Observer, share: Share) -> Participant:
        model = run.model
        recorder = recorder_for(observer, share, self.owner.last, model.device)
        self.flight = self._flight_of(trainer, run, model, recorder)
        return RecordingParticipant(observer, share, self.flight)

    def _flight_of(self, trainer: Trainer, run: LightningRun, model: LightningModule, recorder: Recorder) -> Flight:
        training = TrainerTraining(trainer, model, accumulates=True)
        folder = None if is_quick(trainer) else self._log_folder(trainer)
        return Flight(
            training,
            None if folder is None else partial(self._folder_of, run, RecordFolder(folder, training.world_size)),
            deferred(trainer, tell_record, None),
            self.owner._options,
            recorder,
        )

    def _log_folder(self, trainer: Trainer) -> Path | None:
        """The given folder, or that of the run's log; None, with a warning, if it is not on this machine."""
        root = self.owner.logdir or trainer.log_dir or trainer.default_root_dir
        try:
            check_local("the folder of a flight record", root, "give FlightRecorder(logdir='…') a local one")
        except RuleError as error:
            if trainer.is_global_zero:
                warnings.warn(f"no flight record will be written: {error}", stacklevel=2)
            return None
        return Path(root).resolve()

    def _folder_of(self, run: LightningRun, folder: RecordFolder) -> RecordFolder:
        """The folder of the record: of one process alone, beside an event file of this package if there is one."""
        board = run.folder_of_board()
        is_alone = run.trainer is not None and run.trainer.world_size == 1
        return folder if board is None or self.owner.logdir is not None or not is_alone else RecordFolder(board)

    @override
    def close(self, error: BaseException | None) -> None:
        try:
            super().close(error)
        finally:
            if self.flight is not None:
                self.flight.close()
