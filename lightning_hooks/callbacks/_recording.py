"""Recording: the job of a `FlightRecorder`: reads calls as they happen, and gives the flight what it asks of a Trainer."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import nn
from typing_extensions import override

from lightning_hooks.callbacks._checks import Earlier
from lightning_hooks.callbacks._flights import Flights, Folder
from lightning_hooks.callbacks._job import Job
from lightning_hooks.callbacks._record_telling import tell_in_loop, tell_record
from lightning_hooks.callbacks._trainer import is_quick
from lightning_hooks.engine.assembly import Contribution
from lightning_hooks.engine.inspecting.match_report import MatchLine, plan_report
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.recording import RecorderPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.engine.recording.flight import Flight
from lightning_hooks.engine.recording.record_folder import RecordFolder
from lightning_hooks.engine.recording.recorded_rows import plan_of
from lightning_hooks.errors import RuleError
from lightning_hooks.plan.plan import Plan
from lightning_hooks.recorder.options import RecorderOptions
from lightning_hooks.rules.fields import check_local

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks._run import LightningRun
    from lightning_hooks.callbacks.recorder import FlightRecorder


class Recording(Job["FlightRecorder", Plan]):
    """The job of a `FlightRecorder`.

    Args:
        owner: the callback.
        options: what is recorded and kept.
    """

    notes_calls = True

    def __init__(self, owner: FlightRecorder, options: RecorderOptions) -> None:
        super().__init__(owner)
        self._options = options
        self._flights = self._new_flights(type(owner).__name__)

    def _new_flights(self, owner: str) -> Flights:
        return Flights(owner, self._options, self._folder, tell_record)

    @property
    def flight(self) -> Flight | None:
        """The flight of the current fit, or of the last one; None before the first."""
        return self._flights.flight

    @override
    def for_copy(self) -> Self:
        copied = super().for_copy()
        copied._flights = copied._new_flights(type(self.owner).__name__)
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
        return self._flights.contribution(trainer, run, resolved, self.label)

    @override
    def in_loop(self, run: LoopRun) -> LoopPart:
        given = self.owner.logdir
        folder = run.folder if given is None else Path(given).expanduser().resolve()
        tell = partial(tell_in_loop, tuple(run.callbacks))
        return RecorderPart(run, type(self.owner).__name__, self._options, folder, self.label, self._flights.take, tell)

    @override
    def begin_batch(self, batch: Any, batch_idx: int) -> None:
        self._flights.begin_batch(batch, batch_idx)

    @override
    def after_backward(self) -> None:
        self._flights.after_backward()

    @override
    def end_training(self, trainer: Trainer) -> None:
        if self.owner._current_run is not None:
            self._flights.flush()

    @override
    def fail(self, error: BaseException) -> None:
        self._flights.fail(error)

    def _folder(self, trainer: Trainer, run: LightningRun) -> Folder | None:
        folder = None if is_quick(trainer) else self._log_folder(trainer)
        return None if folder is None else partial(self._folder_of, run, RecordFolder(folder, trainer.world_size))

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
            self._flights.close()
