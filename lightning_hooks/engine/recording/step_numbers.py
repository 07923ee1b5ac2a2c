"""The numbers that a recorder reads of one step on a device: they lie in one block, which is copied to the host at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from lightning_hooks.engine.recording.recorded_rows import Array, Rows
from lightning_hooks.stats import kernels
from lightning_hooks.stats.host_copy import HostCopy, begin_copy, to_device
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.schema import NONFINITE
from lightning_hooks.stats.table import Table
from lightning_hooks.tensor_kinds import held_part

# In the block, two numbers stand between those of rows and those of parameters: the largest magnitude and the loss scale.
_OTHERS = 2


class StepFigures(NamedTuple):
    """The numbers of a step in host memory.

    Args:
        moments: of the rows of the recorder, float64 [rows, 9].
        has_bad_parameter: whether a parameter was not finite after an update.
        has_bad_change: whether the change of a parameter was not finite, which the parameter itself may be nevertheless: the
            difference of two large numbers may overflow.
        scale: the loss scale; None without one.
    """

    moments: Array
    has_bad_parameter: bool
    has_bad_change: bool
    scale: float | None


class PendingFigures(NamedTuple):
    """The numbers of a step that has ended, on their way to the host.

    Args:
        copy: of the block.
        rows: the number of rows of the recorder.
        changes: the positions, among the parameters of the block, of those whose changes were taken.
    """

    copy: HostCopy
    rows: int
    changes: Sequence[int]

    def wait(self) -> StepFigures:
        """The numbers. Waits for the device if the copy is not complete."""
        numbers, many = self.copy.wait(), self.rows * MOMENTS
        largest, scale = numbers[many : many + _OTHERS].tolist()
        is_bad = numbers[many + _OTHERS :].reshape(-1, MOMENTS)[:, NONFINITE] > 0
        has_bad_change = bool(is_bad[self.changes].any())
        is_bad[self.changes] = False
        moments = np.array(numbers[:many]).reshape(-1, MOMENTS)
        # A loss scale is never 0, which the block holds if there is none.
        return StepFigures(moments, bool(is_bad.any()) or not np.isfinite(largest), has_bad_change, scale or None)


class StepNumbers:
    """Collects the numbers of a step on the device of a table, without waiting for the device.

    The block holds the moments of the rows, the largest magnitude of the parameters that no kernel measures, the loss scale,
    and the moments of all other parameters, or of their changes.

    Args:
        rows: the rows of the recorder in the table.

    Example:
        >>> table, numbers = Table(1), StepNumbers(np.array([0]))
        >>> numbers.measure(table, [torch.tensor([1.0, torch.inf])])
        >>> numbers.copied(table, None).wait().has_bad_parameter
        True
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._index: Tensor | None = None
        self._index_of_changes: tuple[Sequence[int], Tensor] | None = None
        self._room = 0  # the parameters that fit into the block
        self._changes: list[int] = []
        self._block: Tensor | None = None
        self._measured = 0
        self._largest: Tensor | None = None

    def begin_step(self) -> None:
        self._block, self._measured, self._largest, self._changes = None, 0, None, []

    def measure(self, table: Table, parameters: Sequence[Tensor]) -> None:
        """Measure the parameters of an optimizer after its update, with one launch for each dtype, and one that merges.

        Args:
            table: whose device measures.
            parameters: of a sharded parameter, only what this rank holds is measured.
        """
        left = self._measure(table, parameters)
        if not left:
            return
        # A kernel measures the shard of a distributed tensor, but not the distributed tensor.
        held = [held_part(parameters[position].detach()) for position in left]
        left = self._measure(table, held)
        # A shard may be empty, and torch computes no largest magnitude of an empty tensor.
        others = [held[position] for position in left if held[position].numel()]
        if others:
            largest = get_total_norm(others, float("inf")).double()
            self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)

    def take_changes(self, table: Table, rows: Sequence[int]) -> None:
        """Take the changes of the parameters of an optimizer from a table in which they are measured already.

        Args:
            table: holds the changes.
            rows: of the changes in the table; the same object in most steps.
        """
        if self._index_of_changes is None or self._index_of_changes[0] is not rows:
            self._index_of_changes = rows, to_device(rows, table.state.device)
        out = self._next(table, len(rows))[1]
        torch.index_select(table.moments, 0, self._index_of_changes[1], out=out.view(-1, MOMENTS))
        self._changes += range(self._measured - len(rows), self._measured)

    def copied(self, table: Table, scale: Tensor | None) -> PendingFigures:
        """Request the copy of the block when a step has ended.

        Args:
            table: holds the moments of the rows.
            scale: the loss scale; None without one.
        """
        block, many = self._with_room(table, 0), len(self._rows) * MOMENTS
        if self._index is None:
            self._index = to_device(self._rows.tolist(), block.device)
        torch.index_select(table.moments, 0, self._index, out=block[:many].view(-1, MOMENTS))
        for position, number in enumerate((self._largest, scale)):
            if number is not None:
                block[many + position].copy_(number.reshape(()), non_blocking=True)
        return PendingFigures(begin_copy(block), len(self._rows), self._changes)

    def _measure(self, table: Table, tensors: Sequence[Tensor]) -> list[int]:
        """Measure tensors on the device of a table. Returns the positions of those that no kernel measures."""
        kernel = kernels.on_device(table.state)
        if kernel is None:
            return list(range(len(tensors)))
        first, _ = self._next(table, len(tensors))
        offsets = np.arange(first, first + len(tensors) * MOMENTS, MOMENTS)
        left: list[int] = kernel.measure_many_into(self._block, offsets, tensors, magnitudes=False)
        return left

    def _next(self, table: Table, many: int) -> tuple[int, Tensor]:
        """Where the block holds the next parameters: the index of their first number, and a view of their numbers."""
        block = self._with_room(table, many)
        first = len(self._rows) * MOMENTS + _OTHERS + self._measured * MOMENTS
        self._measured += many
        return first, block[first : first + many * MOMENTS]

    def _with_room(self, table: Table, more: int) -> Tensor:
        """The block of the step, with room for more parameters. Blocks of later steps are as large from the beginning."""
        self._room = max(self._room, self._measured + more)
        size = len(self._rows) * MOMENTS + _OTHERS + self._room * MOMENTS
        block = self._block
        if block is None or len(block) < size:
            self._block = torch.zeros(size, dtype=torch.float64, device=table.state.device)
            if block is not None:
                self._block[: len(block)] = block
        assert self._block is not None
        return self._block
