"""Rows of a table that lies on a device: filled by few launches for many rows, none of which is waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from lightning_hooks.stats.host_copy import to_device
from lightning_hooks.stats.kernels import Way
from lightning_hooks.stats.measurement import Measurement, UnmeasurableError
from lightning_hooks.stats.moments import MOMENTS


class Detour(Protocol):
    """The way into a table for tensors that are not written straight into it."""

    @property
    def direct(self) -> bool:
        """Whether they may go straight."""

    def __call__(self, row: int, tensor: Tensor, /) -> None:
        """Merge a tensor into a row."""


class HasState(Protocol):
    """Who keeps rows of moments, from the first element of a flat state on."""

    state: Tensor


def writer(kernel: ModuleType, table: HasState, row: int, detour: Detour) -> Callable[[Tensor], None]:
    """A function that merges a tensor into a row of moments.

    Args:
        kernel: which measures.
        table: whose row.
        row: which.
        detour: asked at every call whether tensors may be written so; takes those that may not, or cannot.
    """
    places = [row * MOMENTS]
    way = detour if isinstance(detour, Way) else None

    def write(tensor: Tensor) -> None:
        begun = perf_counter_ns()
        written = False
        if detour.direct:
            with suppress(Exception):  # the detour meets the same error, and knows what to do about it
                written = not kernel.measure_many_into(table.state, places, [tensor], merging=True)
        if not written:
            detour(row, tensor)
        elif way is not None:
            way.nanoseconds += perf_counter_ns() - begun
            way.calls += 1

    return write


def measure_into(
    kernel: ModuleType, state: Tensor, rows: Sequence[int], tensors: Sequence[Sequence[Tensor]], more: set[int]
) -> list[int]:
    """Set rows of moments to what tensors hold, in one launch and one that merges.

    Args:
        kernel: which measures.
        state: begins with the rows.
        rows: which.
        tensors: one list in the same order; or two, the second of which is taken away from the first.
        more: the rows that keep more than moments.

    Returns:
        Which of them, counted from 0, were left out: those that keep more, and what the kernel does not measure.
    """
    plain = [position for position, row in enumerate(rows) if row not in more]
    lists = [[each[position] for position in plain] for each in tensors]
    skipped = kernel.measure_many_into(state, [rows[position] * MOMENTS for position in plain], *lists)
    written = set(plain) - {plain[position] for position in skipped}
    return [position for position in range(len(rows)) if position not in written]


def put(
    moments: Tensor,
    histograms: Tensor,
    slots: dict[int, int],
    users: set[int],
    rows: Sequence[int],
    looks: Sequence[Measurement],
) -> list[int]:
    """Set rows to measurements: one write for all moments, one for all histograms.

    Args:
        moments: [rows, 9], written.
        histograms: [histogram rows, buckets], written.
        slots: which of the histograms is that of a row.
        users: the rows that keep a user's statistic.
        rows: which.
        looks: their measurements, in the same order.

    Returns:
        Which of them, counted from 0, were left out: those with a user's statistic, and what is not measurable.

    Example:
        >>> moments = torch.zeros(3, 9, dtype=torch.float64)
        >>> put(moments, torch.zeros(0, 1), {}, set(), [2, 0], [Measurement(torch.ones(4)), Measurement(torch.ones(5))])
        []
        >>> moments[:, 0].tolist()
        [5.0, 0.0, 4.0]
    """
    left: list[int] = []
    found: list[tuple[int, Tensor]] = []
    counts: list[tuple[int, Tensor]] = []
    for position, (row, look) in enumerate(zip(rows, looks, strict=True)):
        try:
            new = None if row in users else look.moments
        except UnmeasurableError:
            new = None
        if new is None:
            left.append(position)
            continue
        found.append((row, new))
        if row in slots:
            counts.append((slots[row], look.histogram))
    for part, pairs in ((moments, found), (histograms, counts)):
        if pairs:
            index = to_device([place for place, _ in pairs], part.device)
            values = torch.stack([tensor.to(part.device, non_blocking=True) for _, tensor in pairs])
            part.index_copy_(0, index, values.to(part.dtype))
    return left
