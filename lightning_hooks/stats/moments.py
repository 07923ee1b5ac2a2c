"""The raw moments of a tensor, and how two sets of them merge exactly.

A row of moments is nine float64 numbers. Rows of disjoint sets of elements merge into the row of their union
(Chan, Golub and LeVeque 1983 for the mean and the squared deviations; sums, least and greatest otherwise), so merging
over calls, micro-batches, ranks and epochs is one associative operation.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

COUNT: Final = 0
MEAN: Final = 1
M2: Final = 2
ABS_SUM: Final = 3
MIN: Final = 4
MAX: Final = 5
ZEROS: Final = 6
NONFINITE: Final = 7
UNDERFLOW: Final = 8
MOMENTS: Final = 9

_SUMS = [ABS_SUM, ZEROS, NONFINITE, UNDERFLOW]


def neutral(rows: int, device: torch.device | str = "cpu") -> Tensor:
    """Rows that change nothing when merged: the moments of no elements.

    Args:
        rows: how many.
        device: where.

    Example:
        >>> neutral(1)[0].tolist()
        [0.0, 0.0, 0.0, 0.0, inf, -inf, 0.0, 0.0, 0.0]
    """
    out = torch.zeros(rows, MOMENTS, dtype=torch.float64, device=device)
    out[:, MIN] = torch.inf
    out[:, MAX] = -torch.inf
    return out


def merge(a: Tensor, b: Tensor) -> Tensor:
    """The moments of the union of two disjoint sets of elements, row by row.

    Args:
        a: moments [..., 9], float64.
        b: moments of the same shape.

    Example:
        >>> row = neutral(2)
        >>> torch.equal(merge(row, row), row)
        True
    """
    return merge_groups(torch.stack([a, b]), dim=0)


def merge_groups(rows: Tensor, dim: int = 0) -> Tensor:
    """The moments of the union of all sets along one dimension.

    Args:
        rows: moments [..., k, ..., 9], float64; the k sets are disjoint.
        dim: the dimension of the k sets.

    Returns:
        Moments without that dimension.
    """
    rows = rows.movedim(dim, 0)
    count = rows[..., COUNT]
    total = count.sum(0)
    mean = (count / total.clamp(min=1) * rows[..., MEAN]).sum(0)
    spread = torch.where(count == 0, torch.zeros_like(count), count * (rows[..., MEAN] - mean).square())
    out = torch.empty_like(rows[0])
    out[..., COUNT] = total
    out[..., MEAN] = mean
    out[..., M2] = (rows[..., M2] + spread).sum(0)
    out[..., MIN] = rows[..., MIN].amin(0)
    out[..., MAX] = rows[..., MAX].amax(0)
    for column in _SUMS:
        out[..., column] = rows[..., column].sum(0)
    return out


def merge_by_index(rows: Tensor, group: Tensor, groups: int) -> Tensor:
    """The moments of groups of rows.

    Args:
        rows: moments [rows, 9], float64.
        group: the group of each row, int64 [rows].
        groups: how many groups there are.

    Returns:
        Moments [groups, 9]; a group without rows is neutral.
    """
    count = rows[:, COUNT]
    out = neutral(groups, rows.device)
    added = torch.zeros_like(out).index_add_(0, group, rows)
    total = added[:, COUNT]
    weighted = count / total.clamp(min=1)[group] * rows[:, MEAN]
    mean = torch.zeros_like(total).index_add_(0, group, weighted)
    spread = torch.where(count == 0, torch.zeros_like(count), count * (rows[:, MEAN] - mean[group]).square())
    out[:, COUNT] = total
    out[:, MEAN] = mean
    out[:, M2] = added[:, M2].index_add_(0, group, spread)
    out[:, MIN] = out[:, MIN].scatter_reduce(0, group, rows[:, MIN], "amin")
    out[:, MAX] = out[:, MAX].scatter_reduce(0, group, rows[:, MAX], "amax")
    out[:, _SUMS] = added[:, _SUMS]
    return out


def rescale(rows: Tensor, factor: Tensor | float) -> Tensor:
    """The moments of the same elements times a positive factor.

    Counts stay as they were measured: what underflowed did so in the tensor that was seen.

    Args:
        rows: moments [..., 9], float64.
        factor: a number above 0, or a tensor that broadcasts against [...].
    """
    out = rows.clone()
    out[..., MEAN] *= factor
    out[..., M2] *= factor * factor
    out[..., ABS_SUM] *= factor
    out[..., MIN] *= factor
    out[..., MAX] *= factor
    return out


def zeros_row(count: float, device: torch.device | str = "cpu") -> Tensor:
    """The moments of `count` zeros: what a sparse tensor does not store."""
    out = neutral(1, device)[0]
    if count > 0:
        out[COUNT] = count
        out[ZEROS] = count
        out[MIN] = 0.0
        out[MAX] = 0.0
    return out
