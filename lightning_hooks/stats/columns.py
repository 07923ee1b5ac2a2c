"""Columns: the numbers that an accumulator keeps of each row, each with the rule by which several parts are merged.

Every merge applies the rule of a column: the merge of calls, of micro-batches, of ranks, of the rows of a group, and of the
rows that the page folds into one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Merge: TypeAlias = Literal["sum", "mean", "m2", "min", "max"]
Reduce: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class Column:
    """One number of a row.

    Args:
        name: the name of the number.
        merge: the rule for the union of disjoint sets of elements; `mean` and `m2` follow Chan's rule.
        power: multiplying all elements by a factor multiplies the number by this power of the factor.
        over_rows: the rule for several rows that are displayed as one; None to use `merge`.
        every_rank: whether the numbers of all ranks are merged even if the tensor of the row is a copy on several ranks. If
            not, one copy counts.

    Example:
        >>> Column("greatest", merge="max", power=1).neutral
        -inf
    """

    name: str
    _: KW_ONLY
    merge: Merge
    power: int = 0
    over_rows: Merge | None = None
    every_rank: bool = False

    @property
    def neutral(self) -> float:
        """The number of a row without elements. Merging with this number changes nothing."""
        return {"min": np.inf, "max": -np.inf}.get(self.merge, 0.0)


class Reduction(NamedTuple):
    """Assigns parts to unions, in the form of four functions of torch tensors or of NumPy arrays.

    Args:
        total: maps numbers of parts to their sum over each union.
        least: maps numbers of parts to the least number of each union.
        greatest: maps numbers of parts to the greatest number of each union.
        spread: maps numbers of unions to numbers of parts: each part gets the number of its union.
    """

    total: Reduce
    least: Reduce
    greatest: Reduce
    spread: Reduce


STACKED: Final = Reduction(lambda x: x.sum(0), lambda x: x.amin(0), lambda x: x.amax(0), lambda x: x)
"""One union, of all parts along the first dimension of a torch tensor."""


def by_index(group: Tensor, groups: int) -> Reduction:
    """Unions of the rows of a torch tensor.

    Args:
        group: the index of the union of each row, int64 [rows].
        groups: the number of unions.

    Example:
        >>> import torch
        >>> by_index(torch.tensor([0, 1, 0]), 2).total(torch.tensor([[1.0], [2.0], [5.0]])).tolist()
        [[6.0], [2.0]]
    """

    def extreme(x: Tensor, start: float, how: str) -> Tensor:
        blank = x.new_full((groups, *x.shape[1:]), start)
        index = group.reshape(-1, *[1] * (x.dim() - 1)).expand_as(x)
        return blank.scatter_reduce(0, index, x, how)

    return Reduction(
        lambda x: x.new_zeros(groups, *x.shape[1:]).index_add_(0, group, x),
        lambda x: extreme(x, float("inf"), "amin"),
        lambda x: extreme(x, -float("inf"), "amax"),
        lambda x: x[group],
    )


def by_starts(starts: Sequence[int] | NDArray[np.intp], rows: int) -> Reduction:
    """Unions of neighbouring rows of a NumPy array.

    Args:
        starts: the first row of each union, ascending. Every union has at least one row.
        rows: the number of rows.

    Example:
        >>> by_starts([0, 2], 3).total(np.array([[1.0], [2.0], [5.0]])).tolist()
        [[3.0], [5.0]]
    """
    first = np.asarray(starts, dtype=np.intp)
    union_of_row = np.repeat(np.arange(len(first)), np.diff([*first.tolist(), rows]))
    return Reduction(
        lambda x: np.add.reduceat(x, first, axis=0),
        lambda x: np.minimum.reduceat(x, first, axis=0),
        lambda x: np.maximum.reduceat(x, first, axis=0),
        lambda x: x[union_of_row],
    )


def merge_columns(columns: Sequence[Column], values: Any, how: Reduction, *, over_rows: bool = False) -> Any:
    """The numbers of unions of parts, by the rule of each column.

    Means and squared deviations are merged as in Chan, Golub and LeVeque (1983). A column with the rule `mean` needs a column
    named `count`, and a column with the rule `m2` needs one with the rule `mean`.

    Args:
        columns: the columns in the last dimension of `values`.
        values: the numbers of the parts, [..., columns].
        how: assigns parts to unions.
        over_rows: whether the parts are rows that are displayed as one, to which `Column.over_rows` applies.

    Example:
        >>> columns = (Column("count", merge="sum"), Column("mean", merge="mean"), Column("m2", merge="m2"))
        >>> parts = np.array([[2.0, 1.0, 2.0], [1.0, 4.0, 0.0]])
        >>> merge_columns(columns, parts, by_starts([0], 2)).tolist()
        [[3.0, 2.0, 8.0]]
    """
    rules = {(column.over_rows if over_rows else None) or column.merge: i for i, column in enumerate(columns)}
    merged = how.total(values)
    if "mean" in rules:
        position = next(i for i, column in enumerate(columns) if column.name == "count")
        _merge_means(values, merged, how, position, rules["mean"], rules.get("m2"))
    for position, column in enumerate(columns):
        rule = (column.over_rows if over_rows else None) or column.merge
        if rule == "min":
            merged[..., position] = how.least(values[..., position])
        elif rule == "max":
            merged[..., position] = how.greatest(values[..., position])
    return merged


def _merge_means(values: Any, merged: Any, how: Reduction, count: int, mean: int, m2: int | None) -> None:
    """Write the means and the squared deviations of unions into `merged`, whose counts have been written.

    `count`, `mean` and `m2` are indices of columns.
    """
    counts, means, sizes = values[..., count], values[..., mean], merged[..., count]
    merged[..., mean] = how.total(counts / how.spread(sizes + (sizes == 0)) * means)
    if m2 is not None:
        between = counts * (means - how.spread(merged[..., mean])) ** 2
        # A row without elements contributes 0 to the merged row, even if its mean is infinite or NaN.
        between[counts == 0] = 0.0
        merged[..., m2] += how.total(between)
