"""Where the numbers of rows that are written together at every step lie in the state of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats import kernels
from lightning_hooks.stats.moments import MOMENTS


class RowOffsets(NamedTuple):
    """The offsets of rows in the state of a table, computed once by `Table.offsets`.

    Args:
        rows: the indices of the rows.
        moments: the offset of the moments of each row, int64 [rows].
        histograms: the offset of the histogram of each row, int64 [rows], `NO_HISTOGRAM` for a row without one; None if no row
            has a histogram.
        is_direct: whether the kernel in host memory can write everything that these rows keep.

    Example:
        >>> RowOffsets.of([0, 2], [None, None], is_direct=True).moments.tolist()
        [0, 18]
    """

    rows: Sequence[int]
    moments: NDArray[np.int64]
    histograms: NDArray[np.int64] | None
    is_direct: bool

    @staticmethod
    def of(rows: Sequence[int], histograms: Sequence[int | None], is_direct: bool) -> RowOffsets:
        """The offsets of rows whose histograms have these offsets, None for a row without one."""
        moments = np.array(rows, dtype=np.int64) * MOMENTS
        if all(offset is None for offset in histograms):
            return RowOffsets(rows, moments, None, is_direct)
        of_all = [kernels.NO_HISTOGRAM if offset is None else offset for offset in histograms]
        return RowOffsets(rows, moments, np.array(of_all, dtype=np.int64), is_direct)
