"""Call recorder: an observer that notes every call in a trail, and tells when a number that counts is not finite."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.participants.participant import ModuleRule, PhaseMemo
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.plan.rows import LOSS
from lightning_hooks.recorder.calls import Calls, Mark
from lightning_hooks.recorder.overflows import Overflows
from lightning_hooks.recorder.record import Growth
from lightning_hooks.rules import Watch
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats import kernels
from lightning_hooks.stats.schema import COUNT, MAX, MIN, NONFINITE

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
Strike = Callable[[Moment, Optimizer | None], None]
_CAPACITY: Final = 1 << 16
"""The measurements that a trail keeps: 2 MB."""


class CallRecorder(Observer):
    """Measures the rows of a plan at every step, notes each call in order, and looks at the numbers that a training depends on.

    It looks before the backward (the loss), before the update (gradients) and after it (parameters), at once, so that the step
    can be run again with the weights that it had. The model is in host memory; see `late_recorder.py` for others.

    Args:
        plan: the rows.
        last: the number of steps whose largest magnitudes are kept of each row.
        strike: called once, with the moment and the optimizer whose step is under way, when a number is not finite.
        device: of the model.
        label: how messages name the callback.

    Attributes:
        usual: the rows that have had numbers that are not finite in a step whose loss and gradients were finite.
        finite_until: the last step after whose update all parameters were finite; None before the first.
        steps_in_batch: the optimizers that have stepped since the batch began.
    """

    def __init__(self, plan: Plan, last: int, strike: Strike, *, device: Any, label: str = "") -> None:
        super().__init__(plan, on_error="warn", device=device, alone=True, label=label)
        self.trail = kernels.Trail(_CAPACITY)
        self.fallback.trail = self.trail
        self.overflows = Overflows()
        self.usual: set[int] = set()
        self.finite_until: int | None = None
        self.steps_in_batch = 0
        self.reads_updates = True
        self._strike: Strike | None = strike
        self._marks: deque[Mark] = deque(maxlen=4096)
        self._step = -1
        self._bad_before = 0  # bad measurements before the step began
        self._has_overflowed = False
        tensors = [row.tensor for row in plan.rows]
        self._rows_of = {name: np.flatnonzero([tensor == name for tensor in tensors]) for name in set(tensors)}
        self._extremes: NDArray[np.float64] = np.zeros((last, len(plan.rows), 2))
        self._steps: NDArray[np.int64] = np.full(last, -1, np.int64)
        self._ended = 0
        self._moments: NDArray[np.float64] | None = None

    @property
    def is_immediate(self) -> bool:
        """Whether numbers can be looked at without waiting for a device."""
        return True

    @property
    def moments(self) -> NDArray[np.float64]:
        """The moments of all rows, float64 [rows, 9], in the memory of the table."""
        if self._moments is None:
            self._moments = self.table.moments.numpy()
        return self._moments

    def due(self, step: int, stage: str) -> Hashable | None:
        return None if self._strike is None else super().due(step, stage)

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        super().begin_step(step, stage, reporting)
        self._step = step
        self._bad_before, self._has_overflowed = self.trail.bad, False

    def begin_batch(self) -> None:
        last = self._marks[-1] if self._marks else Mark(0, -1, 0)
        is_same_step = last.step == self._step
        # Each callback of this package announces a batch. Mark only the first announcement.
        if is_same_step and last.first == self._noted:
            return
        self._marks.append(Mark(self._noted, self._step, last.micro_batch + 1 if is_same_step else 0))
        self.steps_in_batch = 0

    @property
    def _noted(self) -> int:
        """The number of measurements so far."""
        return self.trail.count

    def module_rules(self, key: Any = None) -> Iterable[ModuleRule]:
        """No rules: a module that is not called is no surprise to a recorder."""
        return ()

    def note_loss(self, loss: Tensor, batches: int = 1) -> None:
        super().note_loss(loss, batches)
        if not self._is_bad(LOSS):
            return
        # NaN has nothing to do with the loss scale; an infinite loss may be too large because of it.
        if self.loss_scale is not None and self._is_infinite(LOSS) and not self.overflows.is_fault(float(self.loss_scale)):
            self._has_overflowed = True
            return
        self._tell("loss", None)

    def before_step(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        super().before_step(optimizer, memo)
        is_bad = self._is_bad("grad")
        scale = self.loss_scale
        if scale is not None:
            if not is_bad:
                self.overflows.note_good(float(scale))
            elif not self.overflows.is_fault(float(scale)):
                self._has_overflowed = True
                return
        if is_bad:
            self._tell("gradients", optimizer)

    def after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        super().after_update(optimizer, memo)
        self.steps_in_batch += 1
        if memo.skipped or self._has_overflowed:
            return
        if kernels.are_finite([each for group in optimizer.param_groups for each in group["params"]]):
            self.finite_until = self._step
        else:
            self._tell("parameters", optimizer)

    def end_step(self) -> None:
        super().end_step()
        if not self.is_waiting:
            return
        if self.trail.bad != self._bad_before or self._has_overflowed:
            self._note_ended(self.moments, self._step, self._has_overflowed)
        else:
            self._keep(self.moments, self._step)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing has gone wrong yet."""
        return self._strike is not None

    def flush(self) -> None:
        """Look at what was not looked at yet; call it when the training ends."""

    def _note_ended(self, moments: NDArray[np.float64], step: int, has_overflowed: bool) -> None:
        """Note the rows whose infinities are usual, since the step went well with them, and keep the extremes of all rows."""
        if not has_overflowed:
            self.usual.update(np.flatnonzero(moments[:, NONFINITE] > 0).tolist())
        self._keep(moments, step)

    def _keep(self, moments: NDArray[np.float64], step: int) -> None:
        slot = self._ended % len(self._steps)
        self._extremes[slot] = moments[:, MIN : MAX + 1]
        self._steps[slot] = step
        self._ended += 1

    @property
    def has_loss(self) -> bool:
        """Whether the loss of the step was measured: nobody may have noted it."""
        return bool((self.moments[self._rows_of[LOSS], COUNT] > 0).any())

    def _is_bad(self, tensor: str) -> bool:
        rows = self._rows_of.get(tensor)
        return rows is not None and bool((self.moments[rows, NONFINITE] > 0).any())

    def _is_infinite(self, tensor: str) -> bool:
        """Whether a tensor has infinite elements and no NaN."""
        extremes = self.moments[self._rows_of[tensor]][:, [MIN, MAX]]
        return bool(np.isinf(extremes).any() and not np.isnan(extremes).any())

    def _tell(self, moment: Moment, optimizer: Optimizer | None) -> None:
        strike, self._strike = self._strike, None
        if strike is not None:
            strike(moment, optimizer)

    def calls(self) -> Calls:
        """The measurements that the trail still keeps, with the starts of their batches and the names of their rows."""
        rows = [(row.name, row.tensor) for row in self.plan.rows]
        return Calls(self.trail.entries(0), self.trail.count, tuple(self._marks), rows)

    @property
    def micro_batch(self) -> int:
        """The number of the batch under way in its step, from 0."""
        return self._marks[-1].micro_batch if self._marks else 0

    @property
    def step(self) -> int:
        """The step under way."""
        return self._step

    def bad_names(self, tensor: str) -> tuple[str, ...]:
        """The names of the rows of a tensor that are not finite in the step under way."""
        rows = self._rows_of.get(tensor)
        if rows is None:
            return ()
        moments = self.moments
        return tuple(self.plan.rows[int(row)].name for row in rows if moments[row, NONFINITE] > 0)

    def growth_of(self, name: str, tensor: str) -> Growth | None:
        """The largest magnitudes of a row at the last steps, the one under way included; None if there is no such row."""
        row = next((row.index for row in self.plan.rows if (row.name, row.tensor) == (name, tensor)), None)
        if row is None:
            return None
        kept = min(self._ended, len(self._steps))
        slots = [(self._ended - kept + i) % len(self._steps) for i in range(kept)]
        seen = [(int(self._steps[slot]), self._extremes[slot, row]) for slot in slots]
        now = self.moments[row]
        if now[COUNT] > 0 and self.step not in [step for step, _ in seen]:
            seen.append((self.step, now[MIN : MAX + 1]))
        # Leave out steps in which the row was not measured: there its minimum is infinity, and its maximum minus infinity.
        largest = [(step, float(max(-low, high))) for step, (low, high) in seen if low <= high]
        steps, values = [step for step, _ in largest], [value for _, value in largest]
        return Growth(name, tensor, tuple(steps), tuple(values))
