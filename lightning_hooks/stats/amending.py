"""What is known of a step only afterwards and changes what a table holds: it did not happen, or the loss scale is another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_hooks.stats import moments as of_rows
from lightning_hooks.stats.histogram import shift
from lightning_hooks.stats.host_copy import to_device
from lightning_hooks.stats.pairs import SMALL
from lightning_hooks.stats.table import Table


def withdraw(table: Table, rows: Sequence[int], unless: Tensor) -> None:
    """Make rows neutral again, unless a number on the device is 0; nothing waits for it.

    Args:
        table: whose rows.
        rows: which; a user's metric of them stays as it is.
        unless: a scalar.
    """
    device = table.state.device
    gone = unless.to(device, non_blocking=True) > 0
    moments, histograms, sums, _ = table.sections.split(table.state)
    index = to_device(rows, device)
    moments[index] = torch.where(gone, of_rows.neutral(len(index), device), moments[index])
    slots = to_device([table.histogram_slots[row] for row in rows if row in table.histogram_slots], device)
    histograms[slots] = torch.where(gone, 0.0, histograms[slots])
    places = to_device([place for row in rows for place in table.users.places(row)], device)
    sums[places] = torch.where(gone, 0.0, sums[places])


def rescale(table: Table, rows: Sequence[int], factor: Tensor) -> None:
    """Multiply what rows hold, and what is known of the parts of gradients, by a factor.

    Args:
        table: whose rows.
        rows: which; only where some of them keep histograms the device is waited for, since whole buckets move.
        factor: a scalar, a power of two.
    """
    factor = factor.to(table.state.device, torch.float64)
    moments, histograms, _, pairs = table.sections.split(table.state)
    index = to_device(rows, table.state.device)
    moments[index] = of_rows.rescale(moments[index], factor)
    pairs[:, SMALL] *= factor.square()
    slots = [table.histogram_slots[row] for row in rows if row in table.histogram_slots]
    if slots:
        histograms[slots] = shift(histograms[slots], round(float(factor.log2())))
