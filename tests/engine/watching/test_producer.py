"""The global numbers that a producer adds to a step view."""

from __future__ import annotations

from math import inf, isnan

import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, Watch, instrument

PARAM = Watch(params="*", tensors="param", stats="mean")


def numbers(*values: float) -> dict[str, float]:
    """The global numbers of a step in which each parameter holds one value, twice."""
    model = nn.Sequential(*(nn.Linear(2, 1, bias=False, dtype=torch.float64) for _ in values))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.fill_(value)
    with instrument(model, [StatsMonitor([PARAM])]) as watched:
        watched.step()
    return watched.latest


@pytest.mark.parametrize("values", [(inf,), (inf, 1.0), (-inf, inf, 2.0)])
def test_the_norm_over_rows_of_which_one_holds_an_infinity_is_infinite(values: tuple[float, ...]) -> None:
    found = numbers(*values)
    assert found["run/param_norm"] == inf
    assert found["run/nonfinite"] == 2 * sum(abs(value) == inf for value in values)


def test_a_nan_in_a_row_makes_the_norm_over_rows_nan() -> None:
    assert isnan(numbers(float("nan"), inf)["run/param_norm"])


def test_squares_that_no_float64_holds_are_infinite_without_a_warning() -> None:
    assert numbers(1e200, 1.0)["run/param_norm"] == inf


def test_the_norm_over_rows_is_that_of_all_elements() -> None:
    assert numbers(3.0, 4.0)["run/param_norm"] == pytest.approx(50**0.5, rel=1e-12)
