"""`FlightRecorder`: notes every call of a training, and writes a record when a number stops being finite."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.callbacks._checks import options_repr
from lightning_hooks.callbacks._recording import Recording
from lightning_hooks.recorder.options import EVENTS, RecorderOptions
from lightning_hooks.recorder.record import FlightRecord
from lightning_hooks.rules.fields import check_local


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

    loggers: Sequence[str] = ()
    _job: Recording

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
        options = RecorderOptions(last, on, batch, weights, autopsy, limit)
        super().__init__(Recording(self, options))
        self.last = last
        self.on = options.on
        self.batch = batch
        self.weights = weights
        self.autopsy = autopsy
        self.limit = limit
        check_local("logdir", logdir, "give a local one")
        self.logdir = logdir

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        return options_repr(self, FlightRecorder)

    @property
    def record(self) -> FlightRecord | None:
        """What was recorded in the current fit, or in the last one; None if nothing went wrong."""
        return None if self._job.flight is None else self._job.flight.record

    @property
    def folder(self) -> Path | None:
        """The folder of the record; None if there is none."""
        return None if self._job.flight is None else self._job.flight.path
