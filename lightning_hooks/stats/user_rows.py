"""The users' own statistics of a table: sums of functions, and a metric for each row that asks for one."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_hooks.stats.custom import UserStatistic, weighted, whole


class UserRows:
    """Which rows keep a user's statistic, and how it is filled.

    Args:
        users: the rows with their statistics.
        replicated: the rows that are the same on every rank.
        device: where metrics live.

    `have_metrics` says whether any statistic is a metric, which is no part of the state that ranks exchange.
    """

    def __init__(
        self, users: Sequence[tuple[int, UserStatistic]], replicated: Sequence[int], device: torch.device | str
    ) -> None:
        self._functions: dict[int, list[tuple[int, UserStatistic]]] = {}
        self._metrics: dict[int, list[tuple[UserStatistic, Metric]]] = {}
        self._replicated = {row for row, _ in users}.intersection(replicated)
        functions = 0
        for row, user in users:
            if user.is_metric:
                made: Any = user.call  # a class, so calling it makes a metric
                metric = made(sync_on_compute=row not in self._replicated).to(device)
                self._metrics.setdefault(row, []).append((user, metric))
            else:
                self._functions.setdefault(row, []).append((functions, user))
                functions += 1
        self.have_metrics = bool(self._metrics)

    def __contains__(self, row: int) -> bool:
        """Whether a row keeps a user's statistic."""
        return row in self._functions or row in self._metrics

    @property
    def rows(self) -> set[int]:
        """Those that keep one."""
        return {*self._functions, *self._metrics}

    @property
    def functions(self) -> list[tuple[int, int, str]]:
        """Row, place among the weighted sums, and name of every function."""
        return [(row, place, user.name) for row, kept in self._functions.items() for place, user in kept]

    def places(self, row: int) -> list[int]:
        """Where the weighted sums of a row lie."""
        return [place for place, _ in self._functions.get(row, ())]

    def fill(self, row: int, sums: Tensor, seen: Tensor, *, merging: bool) -> None:
        """Let a row's statistics see a tensor.

        Args:
            row: which.
            sums: weighted sums with their weights, of all functions [functions, 2].
            seen: the tensor.
            merging: functions add to what is there, or take its place; metrics always go on.

        Raises:
            RuleError: a function did not return a scalar.
        """
        for place, user in self._functions.get(row, ()):
            pair = weighted(user, seen).to(sums.device)
            sums[place] = sums[place] + pair if merging else pair
        for _, metric in self._metrics.get(row, ()):
            metric.update(whole(seen))

    def reset(self, row: int | None = None) -> None:
        """Make the metrics of a row begin anew, or all of them."""
        for kept in self._metrics.values() if row is None else [self._metrics.get(row, [])]:
            for _, metric in kept:
                metric.reset()

    def metric_values(self, counts: Any, touched: Collection[int]) -> dict[tuple[int, str], float]:
        """The value of every metric whose row was filled on any rank; metrics synchronise by themselves.

        Args:
            counts: elements of every row, a vector, merged over ranks, so that all of them ask the same metrics.
            touched: the rows that were filled on this one.
        """
        filled = [row for row in self._metrics if counts[row] > 0 and (row in touched or row not in self._replicated)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The ``compute`` method of metric")  # another rank has updated it
            return {(row, user.name): float(metric.compute()) for row in filled for user, metric in self._metrics[row]}
