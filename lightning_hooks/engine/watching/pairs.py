"""Compares the gradient of a step with that of the previous watched step, and with those of the step's micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lightning_hooks.engine.participants.shards import refuse_sharded
from lightning_hooks.engine.watching.snapshots import copy_all
from lightning_hooks.foreach import foreach, in_groups
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import Demand, Due, Row
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats import kernels
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.pairs import BEFORE, DOT, NOW, PAIR_STATS, PARTS, SMALL
from lightning_hooks.stats.schema import COUNT, M2, MEAN
from lightning_hooks.stats.table import Table
from lightning_hooks.tensor_kinds import is_plain, local_part


class PairWatch:
    """Fills the section `pairs` of a table; `summed` are the rows that also need the gradient of every micro-batch."""

    def __init__(self, plan: Plan, table: Table) -> None:
        self.table = table
        self.summed = [plan.rows[i] for i in plan.index.rows_with({"micro_cosine", "noise_scale"}.__contains__).tolist()]
        what = "its micro-batches cannot be seen. Watch 'micro_cosine' and 'noise_scale' with DDP, or omit them"
        refuse_sharded([row.target for row in self.summed], "watch", what)
        self._kept = {*plan.index.rows_with("cosine".__eq__).tolist()}
        # Maps a step to the rows whose cosine is due at this step for the last time. Rows without a last step are in none.
        self._until: dict[int, list[int]] = {}
        for row, end in _ends(plan).items():
            if end is not None:
                self._until.setdefault(end, []).append(row)
        self._demands = {row.index: _demands_of_comparing(row) for row in plan.rows}
        self._summed_at: dict[Due, list[Row]] = {}
        self._compared_at: dict[Due, set[int]] = {}  # the rows of `_kept` that are compared, by what is due
        # By row: `_before` has the gradient at the previous watched step, `_now` that of this step. While a row is not in
        # `_copied`, the tensor in `_now` is only memory for the copy.
        self._before: dict[int, Tensor] = {}
        self._now: dict[int, Tensor] = {}
        self._copied: set[int] = set()
        self._compared: set[int] = set()  # after their last micro-batch, if any row is summed

    def begin(self, step: int) -> None:
        """Begin a watched step: the latest copies of gradients become those of the previous step.

        The copies of rows whose cosine is never due again are freed.
        """
        before, now = self._before, self._now
        for row in self._copied:
            latest = now.pop(row)
            if row in before:
                now[row] = before[row]
            before[row] = latest
        self._copied.clear()
        self._compared.clear()
        for end in [end for end in self._until if end < step]:
            rows = self._until.pop(end)
            self._kept.difference_update(rows)
            self._compared_at.clear()
            for row in rows:
                before.pop(row, None)
                now.pop(row, None)

    def add(self, row: Row, measurement: Measurement) -> None:
        """Add the gradient of a micro-batch to a row; the sum starts again after a step, or if the parameter has no `grad`."""
        sums = self.table.numbers("pairs", row.index)
        new = measurement.moments.to(sums.device, non_blocking=True)
        if row.target.value.grad is None or row.index in self._compared:
            self._compared.discard(row.index)
            sums[SMALL:] = 0.0
        sums[SMALL] += new[M2] + new[COUNT] * new[MEAN].square()
        sums[PARTS] += 1.0

    def summed_at(self, demands: Due) -> list[Row]:
        """The rows of `summed` that are due."""
        if demands not in self._summed_at:
            self._summed_at[demands] = [row for row in self.summed if not demands.isdisjoint(self._demands[row.index])]
        return self._summed_at[demands]

    def note(self, rows: Sequence[int], demands: Due) -> list[int]:
        """Note that the gradients of these rows are complete. Returns the positions of those that are to be compared.

        Args:
            rows: the rows.
            demands: what is due. A row is compared whenever an owner that compares it has it measured.
        """
        if self.summed:
            self._compared.update(rows)
        if demands not in self._compared_at:
            self._compared_at[demands] = {row for row in self._kept if not demands.isdisjoint(self._demands[row])}
        compared = self._compared_at[demands]
        return [position for position, row in enumerate(rows) if row in compared] if compared else []

    def compare(self, gradients: Mapping[int, Tensor], scale: Tensor | None) -> None:
        """Compare gradients of a step with those of the previous watched step, and keep copies.

        Args:
            gradients: by row, as `comparable` returns them.
            scale: the loss scale by which the gradients are still multiplied, or None.
        """
        rows = [*gradients]
        copies = copy_all([*gradients.values()], [self._now.get(row) for row in rows])
        if scale is not None:
            in_groups(copies, lambda group: foreach("div", group, scale, owned=True))
        self._now.update(zip(rows, copies, strict=True))
        self._copied.update(rows)
        # Compare only equal shapes: the parameter may have been replaced since the previous watched step.
        before = self._before
        both = [
            (row, now, before[row])
            for row, now in zip(rows, copies, strict=True)
            if row in before and before[row].shape == now.shape
        ]
        if not both:
            return
        rows, new, old = (list(each) for each in zip(*both, strict=True))
        for position in kernels.compare_many(self.table.state, self.table.sections.starts("pairs", rows), new, old):
            self._compare_in_torch(rows[position], new[position], old[position])

    def _compare_in_torch(self, row: int, now: Tensor, before: Tensor) -> None:
        new, old = now.flatten().double(), before.flatten().double()
        sums = self.table.numbers("pairs", row)
        sums[DOT], sums[BEFORE], sums[NOW] = torch.dot(new, old), torch.dot(old, old), torch.dot(new, new)


def comparable(parameter: nn.Parameter) -> Tensor | None:
    """The gradient of a parameter, as real numbers; None without one, for a sparse gradient and for a tensor subclass.

    All ranks must call this function for a sharded parameter, of which it returns the part of this rank.
    """
    if parameter.grad is None or parameter.grad.layout is not torch.strided:
        return None
    gradient = local_part(parameter.grad)
    if not is_plain(gradient):
        return None
    return torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient


def _demands_of_comparing(row: Row) -> Due:
    """Everything that the owners demand of a row who ask for statistics of pairs of it; all of it in a plan of one owner."""
    asking = {_owner(each) for each, stats in row.requests if not frozenset(PAIR_STATS).isdisjoint(stats)}
    return frozenset(each for each, _ in row.requests if _owner(each) in asking)


def _owner(each: EveryN) -> int:
    return each.owner if isinstance(each, Demand) else 0


def _ends(plan: Plan) -> dict[int, int | None]:
    """The last step at which a rule requests the cosine of each row, alone or in a group; None if there is no last one."""
    ends: dict[int, int | None] = {}
    for each in plan.rows_and_groups:
        for due, stats in each.requests:
            for row in each.measured if "cosine" in stats else ():
                before = ends.get(row, -1)
                ends[row] = None if before is None or due.end is None else max(before, due.end)
    return ends
