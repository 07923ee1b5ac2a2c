"""Gradients that are still multiplied by the loss scale: they are measured as they are, and their numbers are divided."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lightning_hooks.stats.host_copy import to_device
from lightning_hooks.stats.kernels import NO_HISTOGRAM
from lightning_hooks.stats.measurement import Measurement, UnscaledMeasurement
from lightning_hooks.stats.moments import rescale
from lightning_hooks.stats.row_offsets import RowOffsets
from lightning_hooks.stats.table import Table
from lightning_hooks.tensor_kinds import is_dense


def measure_divided(table: Table, offsets: RowOffsets, tensors: Sequence[Tensor], scale: Tensor) -> list[int]:
    """As `Table.measure_all`, for tensors that are multiplied by a loss scale: rows get the numbers of the quotients.

    All rows are divided together, so the number of operations of torch does not depend on the number of tensors. Underflow is
    that of the undivided tensors. Only a histogram is counted in a quotient, which takes an operation and memory of its own.

    Args:
        table: is written.
        offsets: the offsets of the rows.
        tensors: one for each row.
        scale: the loss scale, a scalar.

    Returns:
        The positions in `offsets.rows` that were skipped and need `RowMeasuring.put`.

    Example:
        >>> import torch
        >>> table = Table(1)
        >>> measure_divided(table, table.offsets([0]), [torch.tensor([2.0, 4.0])], torch.tensor(2.0))
        []
        >>> table.moments[0, :2].tolist()
        [2.0, 1.5]
    """
    left: set[int] = set()
    if offsets.histograms is not None:
        # The pass that counts a histogram also writes the moments of the quotient, which the pass after it overwrites.
        counted = (offsets.histograms != NO_HISTOGRAM).tolist()
        quotients = [
            UnscaledMeasurement(Measurement(tensor), scale).tensor if is_counted and is_dense(tensor) else tensor
            for tensor, is_counted in zip(tensors, counted, strict=True)
        ]
        left.update(table.measure_all(offsets, quotients))
    left.update(table.measure_all(offsets._replace(histograms=None), tensors))
    rows = [row for position, row in enumerate(offsets.rows) if position not in left]
    if rows:
        moments = table.sections.moments_of(table.state)
        index = to_device(rows, moments.device)
        moments[index] = rescale(moments[index], scale.to(moments, non_blocking=True).reciprocal())
    return sorted(left)
