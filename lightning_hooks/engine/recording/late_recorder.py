"""The recorder for a model on a device: it looks at the numbers of a step when the next one has ended, without waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.engine.participants.participant import PhaseMemo
from lightning_hooks.engine.recording.batch_marks import BatchMarks
from lightning_hooks.engine.recording.extremes import Extremes
from lightning_hooks.engine.recording.last_finite import LastFinite
from lightning_hooks.engine.recording.recorded_rows import Array, have_infinite_only, have_nonfinite, rows_by_tensor, trail_of
from lightning_hooks.engine.recording.recorded_step import RecordedStep
from lightning_hooks.engine.recording.recorder import FoundIn
from lightning_hooks.engine.recording.step_numbers import PendingFigures, StepNumbers
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.plan.rows import LOSS
from lightning_hooks.recorder.calls import Calls, Mark
from lightning_hooks.recorder.overflows import Overflows
from lightning_hooks.stats import kernels
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.schema import MAX, MIN, NONFINITE, TRAIL_ENTRY


class _EndedStep(NamedTuple):
    """A step that has ended, whose numbers are on their way to the host.

    Args:
        step: the step.
        figures: the numbers of the step.
        parameters: those of which only changes are among the numbers.
        trail: the measurements of the step without their numbers, as packed `TRAIL_ENTRY`.
        micro_batch: the number of the last batch of the step.
    """

    step: int
    figures: PendingFigures
    parameters: Sequence[Tensor]
    trail: bytes
    micro_batch: int


class LateRecorder:
    """A `Recorder` that notes the order of the calls on the host, and their numbers on the device.

    Several calls of a module in a step have one entry, the first, with the numbers of all.

    Args:
        observer: measures the rows.
        share: of the recorder in the table of the observer.
        last: the number of steps whose largest magnitudes are kept of each row.
    """

    is_immediate = False

    def __init__(self, observer: Observer, share: Share, last: int) -> None:
        self.marks = BatchMarks()
        self._observer, self._plan, self._rows = observer, share.plan, share.part.rows
        self._extremes = Extremes(share.plan, last)
        self._overflows = Overflows()
        self._trail = trail_of(observer, self._rows)
        self._begun = self._trail.count  # the measurements before the step began
        self._numbers = StepNumbers(self._rows)
        self._changed: list[Tensor] = []  # the parameters whose changes are taken in this step
        self._rows_by_tensor = rows_by_tensor(share.plan)
        self._ended_step: _EndedStep | None = None
        self._bad_step: tuple[_EndedStep, Array] | None = None

    @property
    def step(self) -> int:
        return self.marks.step if self._bad_step is None else self._bad_step[0].step

    def recorded(self) -> RecordedStep:
        known = (self._extremes, LastFinite(), self.is_immediate, False)
        names = [(row.name, row.tensor) for row in self._plan.rows]
        if self._bad_step is None:
            # The numbers of the step under way are on the device.
            moments, no_calls = np.zeros((len(self._plan.rows), MOMENTS)), Calls(b"", 0, (), names)
            return RecordedStep(self.marks.step, self.marks.micro_batch, self._plan, moments, no_calls, *known)
        ended, moments = self._bad_step
        calls = _calls_of(ended, moments, names)
        return RecordedStep(ended.step, ended.micro_batch, self._plan, moments, calls, *known)

    def begin_step(self, step: int) -> None:
        self.marks.step = step
        self._begun = self._trail.count
        self._numbers.begin_step()
        self._changed = []

    def begin_batch(self) -> None:
        self.marks.begin_batch(self._trail.count - self._begun)

    def look_at_loss(self, scale: Tensor | None) -> FoundIn | None:
        return None

    def look_before_step(self, scale: Tensor | None) -> FoundIn | None:
        return None

    def look_after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> FoundIn | None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        changes = self._observer.rows_of_changes(parameters)
        if changes is None:
            self._numbers.measure(self._observer.table, parameters)
        else:
            self._numbers.take_changes(self._observer.table, changes)
            self._changed += parameters
        return None

    def end_step(self, scale: Tensor | None) -> FoundIn | None:
        figures = self._numbers.copied(self._observer.table, scale)
        trail = self._trail.entries(self._begun)
        ended = _EndedStep(self.marks.step, figures, self._changed, trail, self.marks.micro_batch)
        previous, self._ended_step = self._ended_step, ended
        return None if previous is None else self._look(previous)

    def flush(self) -> FoundIn | None:
        ended, self._ended_step = self._ended_step, None
        return None if ended is None else self._look(ended)

    def _look(self, ended: _EndedStep) -> FoundIn | None:
        moments, has_bad_parameter, has_bad_change, scale = ended.figures.wait()
        self._bad_step = ended, moments
        loss = self._rows_by_tensor.get(LOSS)
        has_bad_loss = have_nonfinite(moments, loss)
        has_bad_gradient = have_nonfinite(moments, self._rows_by_tensor.get("grad"))
        is_infinite = loss is not None and have_infinite_only(moments, loss)
        may_overflow = scale is not None and not (has_bad_loss and not is_infinite) and not self._overflows.is_fault(scale)
        if has_bad_loss and not may_overflow:
            return "loss"
        if has_bad_gradient and not may_overflow:
            return "gradients"
        if not (has_bad_loss or has_bad_gradient):
            # A parameter that was not finite after its update is not finite now.
            if has_bad_parameter or (has_bad_change and not kernels.are_finite(ended.parameters)):
                return "parameters"
        self._bad_step = None
        if scale is not None and not (has_bad_loss or has_bad_gradient):
            self._overflows.note_good(scale)
        if not (may_overflow and (has_bad_loss or has_bad_gradient)):
            self._extremes.tolerate_nonfinite(moments)
        self._extremes.keep(moments, ended.step)
        return None


def _calls_of(ended: _EndedStep, moments: Array, names: list[tuple[str, str]]) -> Calls:
    """The calls of a step, each row once."""
    calls = Counter(np.frombuffer(ended.trail, TRAIL_ENTRY)["row"].astype(int).tolist())
    entries = [(row, moments[row, MIN], moments[row, MAX], moments[row, NONFINITE], np.nan) for row in calls]
    joined = {row for row, count in calls.items() if count > 1}
    mark = Mark(0, ended.step, ended.micro_batch)
    return Calls(np.array(entries, TRAIL_ENTRY).tobytes(), len(entries), (mark,), names, joined)
