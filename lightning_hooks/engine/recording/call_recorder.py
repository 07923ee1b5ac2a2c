"""Call recorder: reads the table of an observer while a step is under way, and says when a number that counts is not finite."""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.participants.participant import PhaseMemo
from lightning_hooks.engine.recording.extremes import Extremes
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.plan.rows import LOSS
from lightning_hooks.recorder.calls import Calls, Mark
from lightning_hooks.recorder.overflows import Overflows
from lightning_hooks.recorder.record import Growth
from lightning_hooks.rules import Watch
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats import kernels
from lightning_hooks.stats.kernels.trail import Order
from lightning_hooks.stats.schema import COUNT, MAX, MIN, NONFINITE

Array = NDArray[np.float64]
_STATS: Final = ("abs_max", "nonfinite")


def plan_of(model: nn.Module, label: str = "") -> Plan:
    """What a recorder notes: the loss, each call of a layer, its gradient, and the gradients that the optimizers use.

    Args:
        model: the root module.
        label: how messages name the callback.
    """
    rules = []
    if any(True for _ in model.children()):
        rules.append(Watch(modules="*", select="layers", tensors=("output", "output_grad"), stats=_STATS, strict=False))
    if any(True for _ in model.parameters()):
        rules.append(Watch(params="*", tensors=("grad",), stats=_STATS, strict=False))
    return resolve(model, rules, EveryN(), label, with_loss=True, loss_alone=True, name="the recorder's rules")


Moment = Literal["loss", "gradients", "parameters"]
"""When a number was found that is not finite."""
_CAPACITY: Final = 1 << 16
"""The measurements that a trail keeps: 2 MB."""


class Recorder:
    """What both recorders have in common: the rows, the batches of the trail, and the largest magnitudes of the last steps.

    Args:
        observer: measures the rows.
        share: of the recorder in the table of the observer.
        last: the number of steps whose largest magnitudes are kept of each row.

    Attributes:
        finite_until: the last step after whose update all parameters were finite; None before the first.
        steps_in_batch: the optimizers that have stepped since the batch began.
    """

    is_immediate: bool
    """Whether numbers can be looked at without waiting for a device."""

    def __init__(self, observer: Observer, share: Share, last: int) -> None:
        self.plan = share.plan
        self.finite_until: int | None = None
        self.steps_in_batch = 0
        self.overflows = Overflows()
        self._observer = observer
        self._rows = share.part.rows
        self._extremes = Extremes(self.plan, last)
        self._marks: deque[Mark] = deque(maxlen=4096)
        self._begun = -1  # the step that has begun last
        tensors = [row.tensor for row in self.plan.rows]
        self._rows_of = {name: np.flatnonzero([tensor == name for tensor in tensors]) for name in set(tensors)}

    @property
    def usual(self) -> set[int]:
        """The rows that have had numbers that are not finite in a step whose loss and gradients were finite."""
        return self._extremes.usual

    @property
    def step(self) -> int:
        """The step under way."""
        return self._begun

    @property
    def micro_batch(self) -> int:
        """The number of the batch under way in its step, from 0."""
        return self._marks[-1].micro_batch if self._marks else 0

    @property
    def moments(self) -> Array:
        """The moments of all rows in the step that is looked at, float64 [rows, 9]."""
        raise NotImplementedError

    def calls(self) -> Calls:
        """The measurements that are still known, with the starts of their batches and the names of their rows."""
        raise NotImplementedError

    @property
    def _noted(self) -> int:
        """The number of measurements so far."""
        raise NotImplementedError

    def begin_step(self, step: int) -> None:
        """Note that a step begins."""
        self._begun = step

    def begin_batch(self) -> None:
        """Note that a batch begins; a second call for the same batch does nothing."""
        last = self._marks[-1] if self._marks else Mark(0, -1, 0)
        is_same_step = last.step == self._begun
        # Each callback of this package announces a batch. Mark only the first announcement.
        if is_same_step and last.first == self._noted:
            return
        self._marks.append(Mark(self._noted, self._begun, last.micro_batch + 1 if is_same_step else 0))
        self.steps_in_batch = 0

    def look_at_loss(self, scale: Tensor | None) -> Moment | None:
        """Called when the loss is measured, before its backward. Returns when a bad number was found; None for no bad number.

        Args:
            scale: the loss scale; None without one.
        """
        return None

    def look_before_step(self, scale: Tensor | None) -> Moment | None:
        """Called when the gradients of an optimizer are measured; arguments and result as of `look_at_loss`."""
        return None

    def look_after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> Moment | None:
        """Called when an optimizer has changed its parameters; result as of `look_at_loss`."""
        return None

    def end_step(self, scale: Tensor | None) -> Moment | None:
        """Called when a step has ended; arguments and result as of `look_at_loss`."""
        return None

    def flush(self) -> Moment | None:
        """Look at what was not looked at yet, because the training ends; result as of `look_at_loss`."""
        return None

    @property
    def has_loss(self) -> bool:
        """Whether the loss of the step was measured: nobody may have noted it."""
        return bool((self.moments[self._rows_of[LOSS], COUNT] > 0).any())

    def bad_names(self, tensor: str) -> tuple[str, ...]:
        """The names of the rows of a tensor that are not finite in the step that is looked at."""
        rows = self._rows_of.get(tensor)
        moments = self.moments
        return () if rows is None else tuple(self.plan.rows[int(row)].name for row in rows if moments[row, NONFINITE] > 0)

    def growth_of(self, name: str, tensor: str) -> Growth | None:
        """The largest magnitudes of a row at the last steps, the one under way included; None if there is no such row."""
        return self._extremes.growth_of(name, tensor, self.moments, self.step)

    @property
    def _row_names(self) -> list[tuple[str, str]]:
        return [(row.name, row.tensor) for row in self.plan.rows]


class CallRecorder(Recorder):
    """Notes each call in a trail, and looks at the numbers that a training depends on at once. The model is in host memory.

    It looks before the backward (the loss), before the update (gradients) and after it (parameters), so that the step can be
    run again with the weights that it had. `late_recorder.py` has the recorder for other devices.
    """

    is_immediate = True

    def __init__(self, observer: Observer, share: Share, last: int) -> None:
        super().__init__(observer, share, last)
        numbers = np.full(len(observer.plan.rows), -1, np.int32)
        numbers[self._rows] = np.arange(len(self._rows))
        # Recorders of one observer have the same rows, and share a trail.
        trail = observer.fallback.trail
        self.trail = kernels.Trail(_CAPACITY, numbers.tobytes()) if trail is None or isinstance(trail, Order) else trail
        observer.fallback.trail = self.trail
        self._bad_before = 0  # bad measurements before the step began
        self._has_overflowed = False
        self._in_table = {tensor: self._rows[rows] for tensor, rows in self._rows_of.items()}
        self._memory: Array | None = None

    @property
    def _table(self) -> Array:
        """The moments of all rows of the table, in its memory."""
        if self._memory is None:
            self._memory = self._observer.table.moments.numpy()
        return self._memory

    @property
    def moments(self) -> Array:
        moments: Array = self._table[self._rows]
        return moments

    @property
    def _noted(self) -> int:
        return self.trail.count

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        self._bad_before, self._has_overflowed = self.trail.bad, False

    def look_at_loss(self, scale: Tensor | None) -> Moment | None:
        if not self._is_bad(LOSS):
            return None
        # NaN has nothing to do with the loss scale; an infinite loss may be too large because of it.
        if scale is not None and self._is_infinite(LOSS) and not self.overflows.is_fault(float(scale)):
            self._has_overflowed = True
            return None
        return "loss"

    def look_before_step(self, scale: Tensor | None) -> Moment | None:
        is_bad = self._is_bad("grad")
        if scale is not None:
            if not is_bad:
                self.overflows.note_good(float(scale))
            elif not self.overflows.is_fault(float(scale)):
                self._has_overflowed = True
                return None
        return "gradients" if is_bad else None

    def look_after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> Moment | None:
        self.steps_in_batch += 1
        if memo.skipped or self._has_overflowed:
            return None
        if not kernels.are_finite([each for group in optimizer.param_groups for each in group["params"]]):
            return "parameters"
        self.finite_until = self._begun
        return None

    def end_step(self, scale: Tensor | None) -> Moment | None:
        moments = self.moments
        if (self.trail.bad != self._bad_before or self._has_overflowed) and not self._has_overflowed:
            self._extremes.note_usual(moments)
        self._extremes.keep(moments, self._begun)
        return None

    def calls(self) -> Calls:
        return Calls(self.trail.entries(0), self.trail.count, tuple(self._marks), self._row_names)

    def _is_bad(self, tensor: str) -> bool:
        rows = self._in_table.get(tensor)
        return rows is not None and bool((self._table[rows, NONFINITE] > 0).any())

    def _is_infinite(self, tensor: str) -> bool:
        """Whether a tensor has infinite elements and no NaN."""
        extremes = self._table[self._in_table[tensor]][:, [MIN, MAX]]
        return bool(np.isinf(extremes).any() and not np.isnan(extremes).any())
