"""The trail of a `HealthMonitor`: which call of a layer gave the first number that is not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lightning_hooks.callbacks._flights import Flights, Folder
from lightning_hooks.engine.assembly import Contribution
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.recording import RecorderPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.engine.recording.findings import RULE, cause_of
from lightning_hooks.engine.recording.flight import Flight
from lightning_hooks.engine.recording.record_folder import RecordFolder
from lightning_hooks.engine.recording.recorded_rows import plan_of
from lightning_hooks.health.known_cause import KnownCause
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.recorder.options import RecorderOptions
from lightning_hooks.recorder.record import FlightRecord

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks._run import LightningRun

_OPTIONS: Final = RecorderOptions(on="nonfinite", batch=False, autopsy=False)
_RECORDER: Final = (
    "Add FlightRecorder() to the callbacks and train again: it keeps the batch for `lightning-hooks replay`, and on a CPU it "
    "names the operation."
)


class HealthTrail:
    """Notes the calls of layers for a health monitor, unless a `FlightRecorder` of the run does so.

    Args:
        owner: the class of the monitor.
        folder: returns the folder of the run of a Trainer; None if nothing is to be written.
        explain: explains what a rule finds.

    Attributes:
        flights: of the monitor.
    """

    def __init__(self, owner: str, folder: Callable[[], Path | None], explain: Callable[[KnownCause], object]) -> None:
        self._owner, self._folder, self._explain = owner, folder, explain
        self.flights = Flights(owner, _OPTIONS, self._record_folder, self._tell)

    @property
    def flight(self) -> Flight | None:
        """The flight of the current run, or of the last one; None if no calls were noted."""
        return self.flights.flight

    def contributions(
        self, trainer: Trainer, run: LightningRun, rules: Iterable[HealthRule], callbacks: Iterable[Any], label: str
    ) -> list[Contribution]:
        """What the trail brings into a fit that begins: nothing if no rule tells of it, or if a recorder is there.

        Args:
            trainer: of the fit.
            run: of the fit.
            rules: of the monitor.
            callbacks: those of this package in the fit.
            label: how messages name the monitor.
        """
        self.flights.flight = None
        if not _is_needed(rules, callbacks):
            return []
        return [self.flights.contribution(trainer, run, plan_of(run.model, label), label)]

    def in_loop(self, run: LoopRun, rules: Iterable[HealthRule], label: str) -> LoopPart | None:
        """What the trail does in a block of `instrument`; arguments as of `contributions`."""
        self.flights.flight = None
        if not _is_needed(rules, run.callbacks):
            return None
        return RecorderPart(run, self._owner, _OPTIONS, run.folder, label, self.flights.take, self._explain_by)

    def _record_folder(self, trainer: Trainer, run: LightningRun) -> Folder | None:
        folder = self._folder()
        return None if folder is None else partial(RecordFolder, folder, trainer.world_size)

    def _tell(self, trainer: Trainer, record: FlightRecord, folder: Path | None) -> None:
        self._explain_by(record, folder)

    def _explain_by(self, record: FlightRecord, folder: Path | None) -> None:
        if record.failure is None:
            cause = cause_of(record, folder)
            self._explain(KnownCause(RULE, replace(cause, next_steps=(*cause.next_steps, _RECORDER)), keeps_names=True))


def _is_needed(rules: Iterable[HealthRule], callbacks: Iterable[Any]) -> bool:
    is_told = any(rule.enabled and rule.name == RULE for rule in rules)
    return is_told and not any(each._job.notes_calls for each in callbacks)
