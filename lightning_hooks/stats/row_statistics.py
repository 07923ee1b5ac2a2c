"""Statistics of rows and of unions of rows: requested once, then computed together at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.moments import RowUnions
from lightning_hooks.stats.schema import COUNT
from lightning_hooks.stats.spans import Spans
from lightning_hooks.stats.statistics import STATISTICS, Array, compute, compute_all

Indices = NDArray[np.intp]


class StatisticRequests:
    """Collects the statistics to compute at every step, and the unions of rows that they need.

    Args:
        rows: the number of rows of moments.

    Attributes:
        rows: the number of rows of moments.
        columns: the statistic and the rows of each request.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.columns: list[tuple[str, Indices]] = []
        self._unions: dict[tuple[int, ...], int] = {}
        self._spans = Spans()

    @property
    def unions(self) -> list[tuple[int, ...]]:
        """The rows of each union."""
        return [*self._unions]

    @property
    def size(self) -> int:
        """The number of values that are requested so far."""
        return self._spans.size

    def union(self, rows: Sequence[int]) -> int:
        """The index of the union of some rows, for requests: that of the row if there is one, otherwise after all rows."""
        return rows[0] if len(rows) == 1 else self._unions.setdefault(tuple(rows), self.rows + len(self._unions))

    def add(self, stat: str, rows: Indices) -> slice:
        """Request a statistic of rows and unions.

        Args:
            stat: a key of `STATISTICS`, or `count`. Any other name makes room: the caller computes its values, and finds the
                numbers of elements in their place.
            rows: the indices of rows and unions.

        Returns:
            The positions of the values.
        """
        self.columns.append((stat, rows))
        return self._spans.add(len(rows))

    def since(self, start: int) -> slice:
        """The positions of all values that were requested after the first `start` values."""
        return self._spans.since(start)


class StepStatistics(NamedTuple):
    """The statistics of a step.

    Args:
        moments: the moments of rows, then of unions, float64 [rows + unions, 9].
        values: the requested values, float64 [values]; NaN where a row has no elements.
        are_measured: whether the row or union of each value has elements, bool [values]; read-only if `complete`.
        complete: whether every row and every union has elements.
    """

    moments: Array
    values: Array
    are_measured: NDArray[np.bool_]
    complete: bool

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Which rows and unions have elements, bool [rows + unions]."""
        measured: NDArray[np.bool_] = self.moments[:, COUNT] > 0
        return measured

    def norms(self) -> Array:
        """The norms of all rows and unions, float64 [rows + unions]."""
        return compute("norm", self.moments)


class RowStatistics:
    """Computes the requested statistics of a step with one look-up.

    Args:
        requests: the statistics; requests that are added later have no effect.

    Example:
        >>> requests = StatisticRequests(rows=1)
        >>> at = requests.add("max", np.array([0]))
        >>> row = np.array([[4.0, 0.5, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 0.0]])
        >>> RowStatistics(requests)(row).values[at].tolist()
        [1.0]
    """

    def __init__(self, requests: StatisticRequests) -> None:
        self._unions = RowUnions(requests.unions)
        self._stats = tuple(dict.fromkeys(stat for stat, _ in requests.columns if stat in STATISTICS))
        self._rows = np.concatenate([*(rows for _, rows in requests.columns), np.zeros(0, dtype=np.intp)])
        # `compute_all` returns [statistics, rows and unions], with the numbers of elements as the last statistic.
        statistics = np.array([self._index(stat) for stat, _ in requests.columns], dtype=np.intp)
        lengths = [len(rows) for _, rows in requests.columns]
        self._positions = self._rows + np.repeat(statistics, lengths) * (requests.rows + len(self._unions))
        self._all_measured = np.broadcast_to(np.True_, len(self._rows))

    def _index(self, stat: str) -> int:
        return self._stats.index(stat) if stat in self._stats else len(self._stats)

    def __call__(self, moments: Array) -> StepStatistics:
        """The statistics of a step, from its moments [rows, 9]."""
        united = moments
        if len(self._unions):
            united = np.concatenate([moments, self._unions(moments)])
        values, complete = compute_all(self._stats, united)
        are_measured: NDArray[np.bool_] = self._all_measured
        # Most steps measure all rows: look up which values were measured only in the others.
        if not complete:
            are_measured = (united[:, COUNT] > 0).take(self._rows)
        return StepStatistics(united, values.take(self._positions), are_measured, complete)
