"""The raw moments of a tensor, and their exact merge.

A row of moments is nine float64 numbers, in the order of `schema.MOMENTS`. Rows of disjoint sets of elements merge into the row
of their union: means and squared deviations as in Chan, Golub and LeVeque (1983), the other moments as sums, minima or maxima.
The merge is associative, so calls, micro-batches, ranks and epochs can be merged in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats import schema
from lightning_hooks.stats.columns import STACKED, Reduction, by_index, by_starts
from lightning_hooks.stats.schema import COUNT, ZEROS, merge_moments

MOMENTS: Final = len(schema.MOMENTS)
_POWERS: Final = tuple((column, moment.power) for column, moment in enumerate(schema.MOMENTS) if moment.power)


def neutral(rows: int, device: torch.device | str = "cpu") -> Tensor:
    """The moments of rows without elements, float64 [rows, 9]. Merging with them changes nothing.

    Example:
        >>> neutral(1)[0].tolist()
        [0.0, 0.0, 0.0, 0.0, inf, -inf, 0.0, 0.0, 0.0]
    """
    out = torch.zeros(rows, MOMENTS, dtype=torch.float64, device=device)
    for column, value in schema.NOT_ZERO:
        out[:, column] = value
    return out


def merge(a: Tensor, b: Tensor) -> Tensor:
    """The moments of the union of two disjoint sets of elements, row by row: all three [..., 9], float64."""
    return merge_groups(torch.stack([a, b]))


def merge_groups(rows: Tensor) -> Tensor:
    """The moments of the union of k disjoint sets of elements, float64 [..., 9], from the moments of each set [k, ..., 9]."""
    merged: Tensor = merge_moments(rows, STACKED)
    return merged


def merge_in_host(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """As `merge_groups`, with the same bits, of an array [k, 9]: operations of torch on a few numbers take longer than NumPy's.

    Example:
        >>> rows = np.array([[2.0, 1.0, 2.0, 2.0, 0.0, 2.0, 1.0, 0.0, 0.0], [1.0, 4.0, 0.0, 4.0, 4.0, 4.0, 0.0, 0.0, 0.0]])
        >>> merge_in_host(rows)[:3].tolist()
        [3.0, 2.0, 8.0]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        merged: NDArray[np.float64] = merge_moments(rows, _IN_HOST)
    return merged


_IN_HOST: Final = Reduction(
    lambda x: torch.from_numpy(x).sum(0).numpy(),
    lambda x: torch.from_numpy(x).amin(0).numpy(),
    lambda x: torch.from_numpy(x).amax(0).numpy(),
    lambda x: x,
)
"""As `STACKED`, of an array. NumPy adds in another order than torch, so that its sums may differ in the last bit."""


def merge_by_index(rows: Tensor, group: Tensor, groups: int) -> Tensor:
    """The moments of groups of rows, float64 [groups, 9]; a group without rows is neutral.

    Args:
        rows: moments [rows, 9], float64.
        group: the index of the group of each row, int64 [rows].
        groups: the number of groups.
    """
    merged: Tensor = merge_moments(rows, by_index(group, groups))
    return merged


def rescale(rows: Tensor, factor: Tensor | float) -> Tensor:
    """The moments after all elements were multiplied by a factor; a new tensor.

    Counts do not change: underflow is counted in the tensor that was measured.

    Args:
        rows: moments, float64 [..., 9].
        factor: positive; a tensor must broadcast against [...].
    """
    out = rows.clone()
    for column, power in _POWERS:
        out[..., column] *= factor**power
    return out


def zeros_row(count: int, device: torch.device) -> Tensor:
    """The moments of `count` zeros (at least one), such as the elements that a sparse tensor does not store, float64 [9]."""
    out = torch.zeros(MOMENTS, dtype=torch.float64, device=device)
    out[COUNT] = out[ZEROS] = count
    return out


class RowUnions:
    """Merges the same unions of rows at every step, in NumPy, by the rule of `merge_groups`. The indices are computed once.

    Args:
        members: the indices of the rows of each union, at least one. A row may belong to several unions.

    Example:
        >>> rows = np.array([[2.0, 1.0, 2.0, 2.0, 0.0, 2.0, 1.0, 0.0, 0.0], [1.0, 4.0, 0.0, 4.0, 4.0, 4.0, 0.0, 0.0, 0.0]])
        >>> RowUnions([[0, 1]])(rows)[0, :3].tolist()
        [3.0, 2.0, 8.0]
    """

    def __init__(self, members: Sequence[Sequence[int] | NDArray[np.integer[Any]]]) -> None:
        sizes = np.array([len(rows) for rows in members], dtype=np.intp)
        self.rows = np.concatenate([np.asarray(rows, dtype=np.intp) for rows in members] or [np.zeros(0, dtype=np.intp)])
        self.starts = np.concatenate([[0], np.cumsum(sizes)])[: len(members)].astype(np.intp)
        self._how = by_starts(self.starts, len(self.rows))

    def __len__(self) -> int:
        return len(self.starts)

    def __call__(self, moments: NDArray[np.float64]) -> NDArray[np.float64]:
        """The moments of the unions, float64 [unions, 9], from the moments of all rows [rows, 9]."""
        if len(self) == 0:
            return np.empty((0, MOMENTS))
        with np.errstate(invalid="ignore", over="ignore"):
            merged: NDArray[np.float64] = merge_moments(moments.take(self.rows, axis=0), self._how)
        return merged
