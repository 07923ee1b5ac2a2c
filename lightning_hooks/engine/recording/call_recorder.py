"""The recorder for a model in host memory: it notes each call in a trail, and reads the numbers while the step is under way."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.engine.participants.participant import PhaseMemo
from lightning_hooks.engine.recording.batch_marks import BatchMarks
from lightning_hooks.engine.recording.extremes import Extremes
from lightning_hooks.engine.recording.last_finite import LastFinite
from lightning_hooks.engine.recording.recorded_rows import Array, have_infinite_only, have_nonfinite, rows_by_tensor, trail_of
from lightning_hooks.engine.recording.recorded_step import RecordedStep
from lightning_hooks.engine.recording.recorder import FoundIn
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.plan.rows import LOSS
from lightning_hooks.recorder.calls import Calls
from lightning_hooks.recorder.overflows import Overflows
from lightning_hooks.stats import kernels


class CallRecorder:
    """A `Recorder` that looks at numbers as soon as they are measured.

    It looks before the backward (the loss), before the update (gradients) and after it (parameters), so that the step can be
    run again with the weights that it had. `late_recorder.py` has the recorder for other devices.

    Args:
        observer: measures the rows.
        share: of the recorder in the table of the observer.
        last: the number of steps whose largest magnitudes are kept of each row.
    """

    is_immediate = True

    def __init__(self, observer: Observer, share: Share, last: int) -> None:
        self.marks = BatchMarks()
        self._observer, self._plan, self._rows = observer, share.plan, share.part.rows
        self._extremes = Extremes(share.plan, last)
        self._overflows = Overflows()
        self.trail = trail_of(observer, self._rows)
        self._last_finite = LastFinite()
        self._looked_at_gradients = 0  # measurements before the gradients of the step were looked at
        self._bad_before = 0  # bad measurements before the step began
        self._has_overflowed = False
        self._in_table = {tensor: self._rows[rows] for tensor, rows in rows_by_tensor(share.plan).items()}
        self._memory: Array | None = None

    @property
    def step(self) -> int:
        return self.marks.step

    def recorded(self) -> RecordedStep:
        names = [(row.name, row.tensor) for row in self._plan.rows]
        calls = Calls(self.trail.entries(0), self.trail.count, self.marks.all, names)
        return RecordedStep(
            self.marks.step,
            self.marks.micro_batch,
            self._plan,
            self._table[self._rows],
            calls,
            self._extremes,
            self._last_finite,
            self.is_immediate,
            has_read_gradients=self.trail.count == self._looked_at_gradients,
        )

    def begin_step(self, step: int) -> None:
        self.marks.step = step
        self._bad_before, self._has_overflowed = self.trail.bad, False

    def begin_batch(self) -> None:
        self.marks.begin_batch(self.trail.count)

    def look_at_loss(self, scale: Tensor | None) -> FoundIn | None:
        loss = self._in_table.get(LOSS)
        if loss is None or not have_nonfinite(self._table, loss):
            return None
        # NaN has nothing to do with the loss scale; an infinite loss may be too large because of it.
        if scale is not None and have_infinite_only(self._table, loss) and not self._overflows.is_fault(float(scale)):
            self._has_overflowed = True
            return None
        return "loss"

    def look_before_step(self, scale: Tensor | None) -> FoundIn | None:
        self._looked_at_gradients = self.trail.count
        is_bad = have_nonfinite(self._table, self._in_table.get("grad"))
        if scale is not None:
            if not is_bad:
                self._overflows.note_good(float(scale))
            elif not self._overflows.is_fault(float(scale)):
                self._has_overflowed = True
                return None
        return "gradients" if is_bad else None

    def look_after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> FoundIn | None:
        self.marks.updates += 1
        if memo.skipped or self._has_overflowed:
            return None
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        # A finite change shows that the parameter is finite, before and after. Not every change that is not finite shows that
        # it is not: the difference of two large numbers may overflow.
        changes = self._observer.rows_of_changes(parameters)
        is_known = changes is not None and not have_nonfinite(self._table, changes)
        if not is_known and not kernels.are_finite(parameters):
            return "parameters"
        self._last_finite.note(optimizer, parameters, self.marks.step)
        return None

    def end_step(self, scale: Tensor | None) -> FoundIn | None:
        moments: Array = self._table[self._rows]
        if self.trail.bad != self._bad_before and not self._has_overflowed:
            self._extremes.tolerate_nonfinite(moments)
        self._extremes.keep(moments, self.marks.step)
        return None

    def flush(self) -> FoundIn | None:
        # Nothing is on its way: every number was looked at when it was measured.
        return None

    @property
    def _table(self) -> Array:
        """The moments of all rows of the table, in its memory."""
        if self._memory is None:
            self._memory = self._observer.table.moments.numpy()
        return self._memory
