"""Late recorder: a call recorder for a model on a device, which looks at the numbers of a step when the next one has ended."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from lightning_hooks.engine.participants.participant import PhaseMemo
from lightning_hooks.engine.recording.call_recorder import CallRecorder, Strike
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import LOSS
from lightning_hooks.recorder.calls import Calls, Mark
from lightning_hooks.stats.host_copy import HostCopy, begin_copy
from lightning_hooks.stats.kernels.trail import Order
from lightning_hooks.stats.schema import MAX, MIN, NONFINITE, TRAIL_ENTRY
from lightning_hooks.tensor_kinds import held_part

Array = NDArray[np.float64]


class _Ended(NamedTuple):
    """A step that has ended, whose numbers are on their way to the host.

    Args:
        step: the step.
        copy: the moments of all rows, the largest magnitude of a parameter after the update, and the loss scale.
        order: the rows in the order in which they were measured.
        micro_batch: the number of the last batch of the step.
    """

    step: int
    copy: HostCopy
    order: tuple[int, ...]
    micro_batch: int


class LateRecorder(CallRecorder):
    """Notes the order of the calls on the host, and their numbers on the device, without waiting for it.

    Several calls of a module in a step have one entry, the first, with the numbers of all.
    """

    def __init__(self, plan: Plan, last: int, strike: Strike, *, device: Any, label: str = "") -> None:
        super().__init__(plan, last, strike, device=device, label=label)
        self._order = Order()
        self.fallback.trail = self._order
        self._largest: Tensor | None = None
        self._ended_step: _Ended | None = None
        self._looked_at: tuple[_Ended, Array] | None = None

    @property
    def is_immediate(self) -> bool:
        return False

    @property
    def moments(self) -> Array:
        """The moments of the step that is looked at, float64 [rows, 9]; zeros before the first."""
        return np.zeros((len(self.plan.rows), self._columns)) if self._looked_at is None else self._looked_at[1]

    @property
    def step(self) -> int:
        return self._step if self._looked_at is None else self._looked_at[0].step

    @property
    def micro_batch(self) -> int:
        return super().micro_batch if self._looked_at is None else self._looked_at[0].micro_batch

    @property
    def _noted(self) -> int:
        return len(self._order.rows)

    @property
    def _columns(self) -> int:
        return int(self.table.moments.shape[1])

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        super().begin_step(step, stage, reporting)
        self._order.rows.clear()
        self._largest = None

    def note_loss(self, loss: Tensor, batches: int = 1) -> None:
        Observer.note_loss(self, loss, batches)

    def before_step(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        Observer.before_step(self, optimizer, memo)

    def after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        Observer.after_update(self, optimizer, memo)
        held = [held_part(each.detach()) for group in optimizer.param_groups for each in group["params"]]
        # A shard may be empty, and torch computes no largest magnitude of an empty tensor.
        parameters = [each for each in held if each.numel()]
        if parameters:
            largest = get_total_norm(parameters, float("inf")).double()
            self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)

    def end_step(self) -> None:
        Observer.end_step(self)
        if not self.is_waiting:
            return
        moments = self.table.moments
        one = torch.ones((), dtype=torch.float64, device=moments.device)
        largest = one if self._largest is None else self._largest.to(moments.device)
        scale = one * torch.nan if self.loss_scale is None else self.loss_scale.to(moments.device, torch.float64).reshape(())
        copy = begin_copy(torch.cat([moments.flatten(), largest.reshape(1), scale.reshape(1)]).clone())
        before, self._ended_step = self._ended_step, _Ended(self._step, copy, tuple(self._order.rows), super().micro_batch)
        if before is not None:
            self._look(before)

    def flush(self) -> None:
        ended, self._ended_step = self._ended_step, None
        if ended is not None and self.is_waiting:
            self._look(ended)

    def _look(self, ended: _Ended) -> None:
        numbers = np.array(ended.copy.wait(), dtype=np.float64)
        largest, scale = float(numbers[-2]), float(numbers[-1])
        self._looked_at = ended, numbers[:-2].reshape(-1, self._columns)
        is_scaled = not np.isnan(scale)
        has_bad_loss, has_bad_gradient = self._is_bad(LOSS), self._is_bad("grad")
        may_overflow = is_scaled and not (has_bad_loss and not self._is_infinite(LOSS)) and not self.overflows.is_fault(scale)
        if has_bad_loss and not may_overflow:
            self._tell("loss", None)
        elif has_bad_gradient and not may_overflow:
            self._tell("gradients", None)
        elif not np.isfinite(largest) and not (has_bad_loss or has_bad_gradient):
            self._tell("parameters", None)
        else:
            if is_scaled and not (has_bad_loss or has_bad_gradient):
                self.overflows.note_good(scale)
            self.finite_until = ended.step
            self._note_ended(self.moments, ended.step, may_overflow and (has_bad_loss or has_bad_gradient))
            self._looked_at = None

    def calls(self) -> Calls:
        """The calls of the step that is looked at, each row once."""
        rows = [(row.name, row.tensor) for row in self.plan.rows]
        if self._looked_at is None:
            return Calls(b"", 0, (), rows)
        ended, moments = self._looked_at
        calls = Counter(ended.order)
        entries = [(row, moments[row, MIN], moments[row, MAX], moments[row, NONFINITE], np.nan) for row in calls]
        joined = {row for row, count in calls.items() if count > 1}
        mark = Mark(0, ended.step, ended.micro_batch)
        return Calls(np.array(entries, TRAIL_ENTRY).tobytes(), len(entries), (mark,), rows, joined)


def recorder_for(plan: Plan, last: int, strike: Strike, *, device: Any, label: str = "") -> CallRecorder:
    """The recorder for a model on a device; the arguments are those of `CallRecorder`."""
    kind = CallRecorder if torch.device(device).type == "cpu" else LateRecorder
    return kind(plan, last, strike, device=device, label=label)
