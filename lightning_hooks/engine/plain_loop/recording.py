"""The flight recorder of a plain loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lightning_hooks.engine.assembly import TRAIN, Contribution
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.recording.findings import cause_of, finding_of
from lightning_hooks.engine.recording.flight import Flight
from lightning_hooks.engine.recording.participant import RecordingParticipant
from lightning_hooks.engine.recording.record_folder import RecordFolder
from lightning_hooks.engine.recording.recorded_rows import plan_of
from lightning_hooks.engine.recording.recorder import Recorder
from lightning_hooks.engine.recording.recorders import recorder_for
from lightning_hooks.engine.rerun.plain import PlainTraining
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.health.terminal import block_for
from lightning_hooks.health.text import block_of_cause
from lightning_hooks.plan.plan import Plan
from lightning_hooks.recorder.options import as_options
from lightning_hooks.recorder.record import FlightRecord


class LoopRecording:
    """The flight recorder of a plain loop.

    Args:
        plan: what it notes.
        start: makes the flight, given the recorder.
        last: the number of steps whose largest magnitudes are kept.
        device: of the model.

    Attributes:
        flight: writes the record; None until the run is assembled.
    """

    def __init__(self, plan: Plan, start: Callable[[Recorder], Flight], last: int, device: torch.device) -> None:
        self.flight: Flight | None = None
        self._plan, self._start, self._last, self._device = plan, start, last, device

    def contribution(self) -> Contribution:
        """What the recorder brings into the run."""
        return Contribution(
            "FlightRecorder", plans={TRAIN: self._plan}, on_error="warn", names_modules=False, reader=self._participant
        )

    def _participant(self, observer: Observer, share: Share) -> Participant:
        self.flight = self._start(recorder_for(observer, share, self._last, self._device))
        return RecordingParticipant(observer, share, self.flight)


def loop_recording(
    recorder: Any,
    model: nn.Module,
    optimizers: Callable[[], Sequence[Optimizer]],
    folder: Path | None,
    device: torch.device,
) -> LoopRecording | None:
    """The recording of a plain loop; None if nothing is to be recorded.

    Only the loop itself has the batch and can run its step again, so the trail of calls names the module. An update is run
    again.

    Args:
        recorder: as of `instrument`.
        model: the root module.
        optimizers: returns the optimizers of the loop.
        folder: where `flight_record/` goes; None to write nothing.
        device: of the model.

    Raises:
        RuleError: an option is unknown or invalid.
    """
    options = as_options(recorder)
    if options is None:
        return None
    training = PlainTraining(model, optimizers)
    where = None if folder is None else partial(RecordFolder, folder)
    return LoopRecording(plan_of(model), partial(Flight, training, where, _tell, options), options.last, device)


def _tell(record: FlightRecord, folder: Path | None) -> None:
    if record.failure is None:
        block = block_of_cause(cause_of(record, folder), [finding_of(record)])
        print(block_for(block, sys.stderr), file=sys.stderr, flush=True)
    elif folder is not None:
        print(f"The flight record of {record.failure.type} in step {record.step} is in {folder}.", file=sys.stderr, flush=True)
