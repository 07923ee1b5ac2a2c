"""Late recorder: for a model on a device; looks at the numbers of a step when the next one has ended."""

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
from lightning_hooks.engine.recording.call_recorder import CallRecorder, Moment, Recorder
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.plan.rows import LOSS
from lightning_hooks.recorder.calls import Calls, Mark
from lightning_hooks.stats.host_copy import HostCopy, begin_copy, to_device
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


class LateRecorder(Recorder):
    """Notes the order of the calls on the host, and their numbers on the device, without waiting for it.

    Several calls of a module in a step have one entry, the first, with the numbers of all.
    """

    is_immediate = False

    def __init__(self, observer: Observer, share: Share, last: int) -> None:
        super().__init__(observer, share, last)
        trail = observer.fallback.trail
        self._order = trail if isinstance(trail, Order) else Order(share.part.row_of)
        observer.fallback.trail = self._order
        self._largest: Tensor | None = None
        self._ended_step: _Ended | None = None
        self._looked_at: tuple[_Ended, Array] | None = None
        self._index: Tensor | None = None

    @property
    def moments(self) -> Array:
        """The moments of the step that is looked at, float64 [rows, 9]; zeros before the first."""
        return np.zeros((len(self.plan.rows), self._columns)) if self._looked_at is None else self._looked_at[1]

    @property
    def step(self) -> int:
        return self._begun if self._looked_at is None else self._looked_at[0].step

    @property
    def micro_batch(self) -> int:
        return super().micro_batch if self._looked_at is None else self._looked_at[0].micro_batch

    @property
    def _noted(self) -> int:
        return len(self._order.rows)

    @property
    def _columns(self) -> int:
        return int(self._observer.table.moments.shape[1])

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        self._order.rows.clear()
        self._largest = None

    def look_after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> Moment | None:
        held = [held_part(each.detach()) for group in optimizer.param_groups for each in group["params"]]
        # A shard may be empty, and torch computes no largest magnitude of an empty tensor.
        parameters = [each for each in held if each.numel()]
        if parameters:
            largest = get_total_norm(parameters, float("inf")).double()
            self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)
        return None

    def end_step(self, scale: Tensor | None) -> Moment | None:
        table = self._observer.table.moments
        if self._index is None:
            self._index = to_device(self._rows.tolist(), table.device)
        moments = table.index_select(0, self._index)
        one = torch.ones((), dtype=torch.float64, device=moments.device)
        largest = one if self._largest is None else self._largest.to(moments.device)
        known = one * torch.nan if scale is None else scale.to(moments.device, torch.float64).reshape(())
        copy = begin_copy(torch.cat([moments.flatten(), largest.reshape(1), known.reshape(1)]))
        before, self._ended_step = self._ended_step, _Ended(self._begun, copy, tuple(self._order.rows), super().micro_batch)
        return None if before is None else self._look(before)

    def flush(self) -> Moment | None:
        ended, self._ended_step = self._ended_step, None
        return None if ended is None else self._look(ended)

    def _look(self, ended: _Ended) -> Moment | None:
        numbers = np.array(ended.copy.wait(), dtype=np.float64)
        largest, scale = float(numbers[-2]), float(numbers[-1])
        self._looked_at = ended, numbers[:-2].reshape(-1, self._columns)
        is_scaled = not np.isnan(scale)
        has_bad_loss, has_bad_gradient = self._is_bad(LOSS), self._is_bad("grad")
        may_overflow = is_scaled and not (has_bad_loss and not self._is_infinite(LOSS)) and not self.overflows.is_fault(scale)
        if has_bad_loss and not may_overflow:
            return "loss"
        if has_bad_gradient and not may_overflow:
            return "gradients"
        if not np.isfinite(largest) and not (has_bad_loss or has_bad_gradient):
            return "parameters"
        if is_scaled and not (has_bad_loss or has_bad_gradient):
            self.overflows.note_good(scale)
        self.finite_until = ended.step
        if not (may_overflow and (has_bad_loss or has_bad_gradient)):
            self._extremes.note_usual(self.moments)
        self._extremes.keep(self.moments, ended.step)
        self._looked_at = None
        return None

    def calls(self) -> Calls:
        """The calls of the step that is looked at, each row once."""
        if self._looked_at is None:
            return Calls(b"", 0, (), self._row_names)
        ended, moments = self._looked_at
        calls = Counter(ended.order)
        entries = [(row, moments[row, MIN], moments[row, MAX], moments[row, NONFINITE], np.nan) for row in calls]
        joined = {row for row, count in calls.items() if count > 1}
        mark = Mark(0, ended.step, ended.micro_batch)
        return Calls(np.array(entries, TRAIL_ENTRY).tobytes(), len(entries), (mark,), self._row_names, joined)

    def _is_bad(self, tensor: str) -> bool:
        rows = self._rows_of.get(tensor)
        return rows is not None and bool((self.moments[rows, NONFINITE] > 0).any())

    def _is_infinite(self, tensor: str) -> bool:
        """Whether a tensor has infinite elements and no NaN."""
        extremes = self.moments[self._rows_of[tensor]][:, [MIN, MAX]]
        return bool(np.isinf(extremes).any() and not np.isnan(extremes).any())


def recorder_for(observer: Observer, share: Share, last: int, device: Any) -> Recorder:
    """The recorder for a model on a device; the other arguments are those of `Recorder`."""
    kind = CallRecorder if torch.device(device).type == "cpu" else LateRecorder
    return kind(observer, share, last)
