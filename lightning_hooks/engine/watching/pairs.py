"""Gradients compared in pairs: with that of the watched step before, and with those of the micro-batches of a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_hooks.engine.participants.shards import refuse_sharded
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import Row
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.pairs import BEFORE, DOT, NOW, PARTS, SMALL
from lightning_hooks.stats.schema import COUNT, M2, MEAN
from lightning_hooks.stats.table import Table
from lightning_hooks.tensor_kinds import is_plain, local_part


class PairWatch:
    """Fills the sums over pairs of a table; `summed` are the rows of parameters whose micro-batches are seen."""

    def __init__(self, plan: Plan, table: Table) -> None:
        self.table = table
        self.summed = [plan.rows[i] for i in plan.index.rows_with({"micro_cosine", "noise_scale"}.__contains__).tolist()]
        what = "its micro-batches cannot be seen. Watch 'micro_cosine' and 'noise_scale' with DDP, or omit them"
        refuse_sharded([row.target for row in self.summed], "watch", what)
        self._kept = {*plan.index.rows_with("cosine".__eq__).tolist()}
        self._before: dict[int, Tensor] = {}
        self._now: dict[int, Tensor] = {}
        self._compared: set[int] = set()  # rows whose optimizer has stepped since their last micro-batch

    def begin(self) -> None:
        """A watched step begins: the gradients that were kept last are those of the step before."""
        self._before.update(self._now)
        self._now = {}
        self._compared.clear()

    def add(self, row: Row, measurement: Measurement) -> None:
        """Add the gradient of a micro-batch to a row; a new sum begins after a step, and where there is no gradient yet."""
        sums = self.table.numbers("pairs", row.index)
        new = measurement.moments.to(sums.device, non_blocking=True)
        if row.target.value.grad is None or row.index in self._compared:
            self._compared.discard(row.index)
            sums[SMALL:] = 0.0
        sums[SMALL] += new[M2] + new[COUNT] * new[MEAN].square()
        sums[PARTS] += 1.0

    @torch.no_grad()
    def compare(self, parameter: nn.Parameter, row: int, scale: Tensor | None) -> None:
        """A step has this gradient: compare it with that of the step before, and keep a copy.

        Sparse gradients and tensor subclasses are not compared. Of a sharded one all ranks must call this. `scale` is the loss
        scale by which the gradient is still multiplied, if it is.
        """
        self._compared.add(row)
        if row not in self._kept or parameter.grad is None or parameter.grad.layout is not torch.strided:
            return
        gradient = local_part(parameter.grad)
        if not is_plain(gradient):
            return
        if gradient.is_complex():  # a complex number counts as two
            gradient = torch.view_as_real(gradient.resolve_conj())
        now = self._now[row] = gradient.clone() if scale is None else gradient / scale
        before = self._before.get(row)
        if before is not None and before.shape == now.shape:  # otherwise the parameter was replaced
            new, old = now.flatten().double(), before.flatten().double()
            sums = self.table.numbers("pairs", row)
            sums[DOT], sums[BEFORE], sums[NOW] = torch.dot(new, old), torch.dot(old, old), torch.dot(new, new)
