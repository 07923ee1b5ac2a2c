"""The raw moments of a tensor, and how two sets of them merge exactly.

A row of moments is nine float64 numbers. Rows of disjoint sets of elements merge into the row of their union
(Chan, Golub and LeVeque 1983 for the mean and the squared deviations; sums, least and greatest otherwise), so merging
over calls, micro-batches, ranks and epochs is one associative operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from lightning_hooks.stats import schema
from lightning_hooks.stats.schema import COUNT as COUNT
from lightning_hooks.stats.schema import M2 as M2
from lightning_hooks.stats.schema import MAX as MAX
from lightning_hooks.stats.schema import MEAN as MEAN
from lightning_hooks.stats.schema import MIN as MIN
from lightning_hooks.stats.schema import ZEROS

MOMENTS: Final = len(schema.MOMENTS)
_NEUTRAL: Final = tuple(moment.neutral for moment in schema.MOMENTS)
_POWERS: Final = tuple((column, moment.power) for column, moment in enumerate(schema.MOMENTS) if moment.power)


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
    for column, value in enumerate(_NEUTRAL):
        if value != 0.0:
            out[:, column] = value
    return out


Over = Callable[[Any], Any]


def by_chan(rows: Any, add: Over, least: Over, greatest: Over, each: Over) -> Any:
    """The moments of groups of rows, of torch or of NumPy; the rule of which all other functions are cases.

    Args:
        rows: moments [..., 9], float64.
        add: sums over each group.
        least: the least number of each group.
        greatest: the greatest number of each group.
        each: for every row what its group has, from what `add` gives.
    """
    count, mean = rows[..., COUNT], rows[..., MEAN]
    out = add(rows)
    out[..., MEAN] = add(count / each(out[..., COUNT].clip(1)) * mean)
    away = count * (mean - each(out[..., MEAN])) ** 2
    away[count == 0] = 0.0  # not inf or NaN, whatever the mean is
    out[..., M2] += add(away)
    out[..., MIN] = least(rows[..., MIN])
    out[..., MAX] = greatest(rows[..., MAX])
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
    merged: Tensor = by_chan(rows, lambda x: x.sum(0), lambda x: x.amin(0), lambda x: x.amax(0), lambda x: x)
    return merged


def merge_by_index(rows: Tensor, group: Tensor, groups: int) -> Tensor:
    """The moments of groups of rows.

    Args:
        rows: moments [rows, 9], float64.
        group: the group of each row, int64 [rows].
        groups: how many groups there are.

    Returns:
        Moments [groups, 9]; a group without rows is neutral.
    """
    blank = neutral(groups, rows.device)
    merged: Tensor = by_chan(
        rows,
        lambda x: x.new_zeros(groups, *x.shape[1:]).index_add_(0, group, x),
        lambda x: blank[:, MIN].scatter_reduce(0, group, x, "amin"),
        lambda x: blank[:, MAX].scatter_reduce(0, group, x, "amax"),
        lambda x: x[group],
    )
    return merged


def rescale(rows: Tensor, factor: Tensor | float) -> Tensor:
    """The moments of the same elements times a positive factor.

    Counts stay as they were measured: what underflowed did so in the tensor that was seen.

    Args:
        rows: moments [..., 9], float64.
        factor: a number above 0, or a tensor that broadcasts against [...].
    """
    out = rows.clone()
    for column, power in _POWERS:
        out[..., column] *= factor**power
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
