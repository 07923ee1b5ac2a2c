"""The columns of an input over many batches: those that are one constant, and those whose scale is far from the others'."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST: Final = 20
"""The number of batches after which columns are judged."""
_SAMPLES: Final = 500
"""The number of samples after which columns are judged."""
FEWEST, MOST = 3, 4096
"""The numbers of columns that are judged: fewer have no others to be compared with, and more are a vocabulary."""
_READ: Final = 1 << 18
"""The number of elements of a batch that are read; of a larger one some rows are."""
_SHARE: Final = 0.25
"""The share of columns beyond which a constant, or another scale, is a property of the data."""
_FEW: Final = 0.05
"""The share of columns up to which zeros are more than information."""
_BACKGROUND: Final = 0.01
"""The share of zeros in the other columns beyond which a zero is a usual value."""
FAR: Final = 500.0
"""The quotient of sizes from which on two columns have different units: a thousand, and half of it for chance."""
_Array = NDArray[np.float64]


class Constant(NamedTuple):
    """Columns that have the same number in all samples.

    Args:
        columns: their numbers.
        value: that they have.
        is_few: whether they are so few that the data hardly are made this way.
    """

    columns: list[int]
    value: float
    is_few: bool


@torch.no_grad()
def measured(rows: Tensor) -> Tensor:
    """The smallest and the largest number of each column, how many are not 0, the sum of squares, and how many were read.

    Args:
        rows: [samples, columns], of real numbers or integers.

    Returns:
        float64 [5, columns] on the device of the rows.

    Example:
        >>> measured(torch.tensor([[0, 3], [0, -4]])).tolist()
        [[0.0, -4.0], [0.0, 3.0], [0.0, 2.0], [0.0, 25.0], [2.0, 2.0]]
    """
    if rows.numel() > _READ:
        rows = rows[:: -(-rows.numel() // _READ)]
    numbers = rows.double()
    low, high = numbers.aminmax(dim=0)
    counts = numbers.count_nonzero(dim=0).double()
    return torch.stack([low, high, counts, numbers.square().sum(dim=0), torch.full_like(low, len(rows))])


class Columns:
    """What is known of the columns of one input.

    Attributes:
        batches: how many were added.
        samples: how many of their samples were read.
    """

    def __init__(self) -> None:
        self.batches, self.samples = 0, 0
        self._sum: _Array | None = None
        self._is_finite = True

    def add(self, numbers: NDArray[Any]) -> None:
        """Add a batch, by the numbers of `measured`. Other columns than before begin anew."""
        if self._sum is None or self._sum.shape != numbers.shape:
            self.batches, self.samples, self._sum = 0, 0, np.array(numbers, dtype=np.float64)
        else:
            known = self._sum
            np.minimum(known[0], numbers[0], out=known[0])
            np.maximum(known[1], numbers[1], out=known[1])
            known[2:] += numbers[2:]
        self.batches += 1
        self.samples = int(self._sum[4, 0])
        self._is_finite = bool(np.isfinite(self._sum).all())

    @property
    def are_judged(self) -> bool:
        """Whether enough of them has been seen, and all of it is finite."""
        return self._is_finite and self.batches >= LEAST and self.samples >= _SAMPLES

    def constant(self, *, are_ids: bool = False) -> list[Constant]:
        """The columns that are one constant, which is no usual value of the other columns.

        A zero of one-hot columns, of counts or of a background is usual, and so is the number of a border. If a quarter of the
        columns are constant, the data are made this way.

        Args:
            are_ids: whether the columns hold the ids of an embedding, whose first and last columns may be marks on purpose.
        """
        if not self.are_judged or self._sum is None:
            return []
        low, high, nonzero, _, rows = self._sum
        is_constant = low == high
        count = int(is_constant.sum())
        if not count or count > max(1.0, _SHARE * len(low)):
            return []
        others = ~is_constant
        usual = {*low[others].tolist(), *high[others].tolist()}
        if float(nonzero[others].sum()) < (1 - _BACKGROUND) * float(rows[others].sum()):
            usual.add(0.0)
        first, last = (int(np.flatnonzero(others)[at]) for at in (0, -1)) if are_ids else (0, len(low))
        found: dict[float, list[int]] = {}
        for column in np.flatnonzero(is_constant).tolist():
            if first <= column < last and float(low[column]) not in usual:
                found.setdefault(float(low[column]), []).append(column)
        return [Constant(each, value, len(each) <= max(1.0, _FEW * len(low))) for value, each in found.items()]

    def apart(self) -> list[tuple[int, float, float]]:
        """The columns far from the others in scale: each with its size, and the median size of the columns.

        The size is the root mean square of the elements that are not 0, so that rare marks have the size of a mark.
        """
        if not self.are_judged or self._sum is None:
            return []
        _, _, nonzero, squares, _ = self._sum
        known = np.flatnonzero(nonzero > 0)
        if len(known) < FEWEST:
            return []
        sizes = np.sqrt(squares[known] / nonzero[known])
        usual = float(np.median(sizes))
        is_far = (sizes >= FAR * usual) | (sizes * FAR <= usual)
        if not is_far.any() or is_far.sum() > max(1.0, _SHARE * len(known)):
            return []
        return [(int(known[at]), float(sizes[at]), usual) for at in np.flatnonzero(is_far).tolist()]
