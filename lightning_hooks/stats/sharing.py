"""One measurement of a tensor for several rows, of one table or of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from lightning_hooks.stats import kernels
from lightning_hooks.stats.measurement import Measurement

Write = Callable[[Tensor], None]
Merge = Callable[[Measurement], None]


def share(writes: Sequence[Write], merges: Sequence[Merge]) -> Write:
    """A function that measures a tensor once and does what several writers do.

    In host memory the kernel measures once and merges into every row that is written directly. The rows that only Python
    writes, and those that are not written directly at the moment, share one `Measurement` with the moments that the kernel
    found; so do rows that also keep units. On a CUDA device one launch measures, and each table merges.

    Args:
        writes: from `Table.writer`, or functions that only call their merge.
        merges: for each of them, takes a measurement of the tensor.

    Example:
        >>> import torch
        >>> from lightning_hooks.stats.table import Table
        >>> table = Table(2)
        >>> merges = [partial(table.add, row) for row in range(2)]
        >>> share([measured_for(merge) for merge in merges], merges)(torch.tensor([1.0, 3.0]))
        >>> table.moments[:, 1].tolist()
        [2.0, 2.0]
    """
    writer_type: Any = kernels.host.Writer
    direct = [(write, merge) for write, merge in zip(writes, merges, strict=True) if isinstance(write, kernels.DeviceWriter)]
    rest = [(write, merge) for write, merge in zip(writes, merges, strict=True) if not isinstance(write, kernels.DeviceWriter)]
    every: list[Write] = [write for write, _ in direct]
    if len(direct) > 1:
        on_device = [write for write, _ in direct]
        every = [kernels.SharedDeviceWriter(on_device, partial(_merge_each, [merge for _, merge in direct]))]
    if rest:
        writers = tuple(write if isinstance(write, writer_type) else None for write, _ in rest)
        merge = partial(_merge_each, [merge for _, merge in rest])
        positions = tuple(range(len(rest)))
        every.append(partial(merge, positions) if not any(writers) else kernels.host.SharedWriter(writers, merge))
    if len(every) == 1:
        return every[0]

    def write_each(tensor: Tensor) -> None:
        for write in every:
            write(tensor)

    return write_each


def measured_for(merge: Merge) -> Write:
    """A function that measures each tensor for a merge."""
    return partial(_merge_each, [merge], (0,))


def _merge_each(merges: Sequence[Merge], positions: Sequence[int], tensor: Tensor, moments: bytes | None = None) -> None:
    """Call some of the merges with one measurement.

    Args:
        moments: of the tensor, as `kernels.host.read` gives them, if they are known.
    """
    measurement = Measurement(tensor, moments)
    for position in positions:
        merges[position](measurement)
