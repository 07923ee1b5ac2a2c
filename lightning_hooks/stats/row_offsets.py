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

    @staticmethod
    def joined(several: Sequence[RowOffsets]) -> RowOffsets:
        """The offsets of the rows of several lists, one list after the other.

        Args:
            several: at least one.

        Example:
            >>> lists = [RowOffsets.of([0, 2], [None, None], True), RowOffsets.of([1], [90], True)]
            >>> RowOffsets.joined(lists).rows, RowOffsets.joined(lists).histograms.tolist()
            ([0, 2, 1], [-1, -1, 90])
        """
        if len(several) == 1:
            return several[0]
        histograms = [
            np.full(len(each.rows), kernels.NO_HISTOGRAM, dtype=np.int64) if each.histograms is None else each.histograms
            for each in several
        ]
        return RowOffsets(
            [row for each in several for row in each.rows],
            np.concatenate([each.moments for each in several]),
            None if all(each.histograms is None for each in several) else np.concatenate(histograms),
            all(each.is_direct for each in several),
        )
