"""The `torchmetrics.Metric` objects of rows. A metric holds its state outside of the table, and synchronises ranks itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_hooks.stats.measurement import blame
from lightning_hooks.stats.user_statistics import UserStatistic
from lightning_hooks.tensor_kinds import whole

METRICS: Final = "metrics"
"""What stands for all metrics where an accumulator has a name."""


class MetricRows:
    """The metrics of a table, which are not part of the state that ranks exchange.

    Args:
        metrics: pairs of a row and the statistic of the user, whose `call` is a metric class.
        replicated: the rows of which every rank measures the same whole tensor. Their metrics are not synchronised.
        device: the device of the metrics.
    """

    def __init__(
        self, metrics: Sequence[tuple[int, UserStatistic]], replicated: Iterable[int], device: torch.device | str
    ) -> None:
        self._metrics: dict[int, list[tuple[UserStatistic, Metric]]] = {}
        self._replicated = {row for row, _ in metrics}.intersection(replicated)
        for row, user in metrics:
            metric = user.run(user.call, sync_on_compute=row not in self._replicated).to(device)
            self._metrics.setdefault(row, []).append((user, metric))
        self.rows = frozenset(self._metrics)
        self._updated: set[int] = set()

    def __contains__(self, row: int) -> bool:
        return row in self._metrics

    def update(self, row: int, tensor: Tensor) -> None:
        """Update all metrics of a row with a tensor. An empty tensor is ignored.

        For a sharded tensor, which is gathered first, all ranks must call this method.
        """
        tensor = whole(tensor)
        if not tensor.numel():
            return
        self._updated.add(row)
        for user, metric in self._metrics.get(row, ()):
            # Pass a copy: a metric may keep the tensor, which training overwrites.
            try:
                user.run(metric.update, tensor.clone())
            except Exception as error:
                blame(error, user.name)
                raise

    def reset(self, row: int | None = None) -> None:
        """Reset the metrics of a row; those of all rows by default."""
        if row is None:
            self._updated.clear()
        for kept in self._metrics.values() if row is None else [self._metrics.get(row, [])]:
            for _, metric in kept:
                metric.reset()

    def values(self, counts: Any) -> dict[tuple[int, str], float]:
        """The value of every metric whose row was measured on some rank, by row and name of the statistic.

        All ranks must call this method, because computing a metric synchronises it.

        Args:
            counts: the number of elements of every row, merged over ranks, so that all ranks compute the same metrics.
        """
        measured = [row for row in self._metrics if counts[row] > 0 and (row in self._updated or row not in self._replicated)]
        computed = [(row, user, metric) for row in measured for user, metric in self._metrics[row]]
        return {(row, user.name): float(user.scalar(user.run(_compute, metric))) for row, user, metric in computed}


def _compute(metric: Metric) -> Any:
    """The value of a metric over all ranks, even if only another rank has updated it.

    If this rank has not updated the metric, `metric.compute` would warn. No filter hides the warning: setting a filter makes
    Python forget which warnings it has shown, and the user's own warnings would be shown again at every step.
    """
    undecorated = getattr(metric.compute, "__wrapped__", None)
    if metric.update_called or undecorated is None:
        return metric.compute()
    with metric.sync_context(dist_sync_fn=metric.dist_sync_fn):
        return undecorated()
