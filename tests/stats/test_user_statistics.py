"""Statistics of users: computing them does not change Python's warning filters."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, SumMetric

from lightning_hooks import StatsMonitor, Watch, instrument
from lightning_hooks.stats.metrics import MetricRows
from lightning_hooks.stats.user_statistics import user_statistic


@pytest.mark.parametrize("stats", [["mean", "histogram"], ["mean", MeanMetric], [torch.sum]])
def test_a_warning_of_the_user_is_shown_once_in_many_watched_steps(stats: list[Any]) -> None:
    class Warns(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            warnings.warn("the user's own", UserWarning, stacklevel=1)
            return x * 2

    model = nn.Sequential(nn.Linear(2, 2), Warns())
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        with instrument(model, [StatsMonitor([Watch(modules="*", tensors="output", stats=stats)])]) as watched:
            for _ in range(5):
                model(torch.ones(1, 2)).sum().backward()
                watched.step()
    assert [str(each.message) for each in shown] == ["the user's own"]


def test_a_metric_that_only_another_rank_has_updated_warns_of_nothing() -> None:
    rows = MetricRows([(0, user_statistic(SumMetric, "watch[0]"))], [], "cpu")
    assert rows.values(np.array([3.0])) == {(0, "SumMetric"): 0.0}
    rows.update(0, torch.tensor([1.0, 2.0]))
    assert rows.values(np.array([3.0])) == {(0, "SumMetric"): 3.0}
