"""`FlightRecorder`: notes every call of a training, and writes a record when a number stops being finite."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn
from typing_extensions import override

from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.callbacks._checks import Earlier, options_repr
from lightning_hooks.callbacks._record_telling import tell_record
from lightning_hooks.callbacks._run import LightningRun
from lightning_hooks.callbacks._trainer import deferred
from lightning_hooks.callbacks._trainer_training import TrainerTraining
from lightning_hooks.engine.assembly import Contribution
from lightning_hooks.engine.inspecting.match_report import MatchLine, plan_report
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.recording.call_recorder import Recorder, plan_of
from lightning_hooks.engine.recording.flight import Flight
from lightning_hooks.engine.recording.late_recorder import recorder_for
from lightning_hooks.engine.recording.participant import RecordingParticipant
from lightning_hooks.engine.recording.record_folder import RecordFolder
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.errors import RuleError
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rank_check import check_ranks_agree
from lightning_hooks.recorder.options import EVENTS, RecorderOptions
from lightning_hooks.recorder.record import FlightRecord
from lightning_hooks.rules.fields import check_local

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


class FlightRecorder(HooksCallback):
    """Write a record when a number stops being finite, or when an exception ends the run.

    Every call of a layer is noted as it happens. The record, in `flight_record/` in the folder of the run, names the module and
    the operation that made the first bad number, what it read, the calls before it, and the command that replays the step. It
    is written once.

    Bad means: the loss, a gradient that an optimizer uses, or a parameter is not finite. Infinities that do not reach these
    (masks, an output that nobody differentiates) and overflows that a loss scaler handles are not recorded.

    Args:
        last: the number of calls in the record, and of the steps whose largest magnitudes it has.
        on: what is recorded, `nonfinite`, `exception`, or both.
        batch: whether the batch and the states of the generators are saved with the record, so that the step can be replayed.
        weights: whether parameters, buffers and the state of the optimizers are saved too.
        autopsy: whether the training step runs again at once, to name the operation. It needs a model in host memory, and no
            other process.
        limit: seconds after which that run is stopped.
        logdir: the folder in which `flight_record/` is made; that of the run's log by default.

    Raises:
        RuleError: an unknown event, or an argument of the wrong type.

    Example:
        >>> FlightRecorder(weights=True, on="nonfinite")
        FlightRecorder(on=('nonfinite',), weights=True)
    """

    stages = ("train",)
    loggers: Sequence[str] = ()

    def __init__(
        self,
        last: int = 200,
        *,
        on: str | Sequence[str] = EVENTS,
        batch: bool = True,
        weights: bool = False,
        autopsy: bool = True,
        limit: float = 60.0,
        logdir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self._options = RecorderOptions(last, on, batch, weights, autopsy, limit)
        self.last = last
        self.on = self._options.on
        self.batch = batch
        self.weights = weights
        self.autopsy = autopsy
        self.limit = limit
        check_local("logdir", logdir, "give a local one")
        self.logdir = logdir
        self._flight: Flight | None = None

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        return options_repr(self, FlightRecorder)

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle belongs to no run."""
        return {**super().__getstate__(), "_flight": None}

    @property
    def record(self) -> FlightRecord | None:
        """What was recorded in the current fit, or in the last one; None if nothing went wrong."""
        return None if self._flight is None else self._flight.record

    @property
    def folder(self) -> Path | None:
        """The folder of the record; None if there is none."""
        return None if self._flight is None else self._flight.path

    @override
    def _resolve(self, model: nn.Module, trainer: Trainer | None = None, earlier: Earlier | None = None) -> Plan:
        return plan_of(model, self._label)

    @override
    def _lines(self, resolved: Plan) -> list[MatchLine]:
        return plan_report(resolved)

    @property
    @override
    def _rules(self) -> str:
        return "the recorder's rules"

    @override
    def _contribute(self, trainer: Trainer, run: LightningRun, resolved: Plan) -> Contribution:
        if trainer.world_size > 1:
            check_ranks_agree(resolved, trainer.strategy.root_device)
        return Contribution(
            type(self).__name__,
            self._label,
            {"train": resolved},
            on_error="warn",
            names_modules=False,
            reader=partial(self._start_recording, trainer, run),
        )

    def _start_recording(self, trainer: Trainer, run: LightningRun, observer: Observer, share: Share) -> Participant:
        model = cast("LightningModule", run.model)
        recorder = recorder_for(observer, share, self.last, model.device)
        self._flight = self._flight_of(trainer, run, model, recorder)
        return RecordingParticipant(observer, share, self._flight)

    def _flight_of(self, trainer: Trainer, run: LightningRun, model: LightningModule, recorder: Recorder) -> Flight:
        untyped: Any = trainer
        training = TrainerTraining(trainer, model, accumulates=True)
        folder = None if untyped.fast_dev_run else self._log_folder(trainer)
        return Flight(
            training,
            None if folder is None else partial(self._folder_of, run, RecordFolder(folder, training.world_size)),
            deferred(trainer, tell_record, None),
            self._options,
            recorder,
        )

    def _log_folder(self, trainer: Trainer) -> Path | None:
        """The given folder, or that of the run's log; None, with a warning, if it is not on this machine."""
        root = self.logdir or trainer.log_dir or trainer.default_root_dir
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
        return folder if board is None or self.logdir is not None or not is_alone else RecordFolder(board)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before a batch: keep a reference to it."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self._current_run is not None and self._flight is not None:
            self._flight.begin_batch(batch, batch_idx)

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after each backward of the loss: explain a bad loss."""
        super().on_after_backward(trainer, pl_module)
        if self._flight is not None:
            self._flight.after_backward()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the last batch: look at the last step."""
        super().on_train_end(trainer, pl_module)
        if self._flight is not None and self._current_run is not None:
            self._flight.flush()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when the fit failed or was interrupted: record it, then remove all hooks."""
        if self._flight is not None and self._current_run is not None:
            self._flight.fail(exception)
        super().on_exception(trainer, pl_module, exception)

    @override
    def _detach(self, error: BaseException | None = None) -> None:
        try:
            super()._detach(error)
        finally:
            if self._flight is not None:
                self._flight.close()
