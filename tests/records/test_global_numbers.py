"""The global numbers of steps at which only the loss, the whole gradient and the batch are measured."""

import numpy as np
import pytest

from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.global_numbers import GlobalNumbers
from lightning_hooks.stats.moments import neutral

TENSORS = ("grad", "loss", "param", "gradient", "update", "batch")
NAN = float("nan")


def moments_of(measured):
    moments = neutral(len(TENSORS)).numpy()
    for tensor, (mean, m2, nonfinite) in measured.items():
        moments[TENSORS.index(tensor)] = 4.0, mean, m2, 1.0, mean - 1.0, mean + 1.0, 0.0, nonfinite, 0.0
    return moments


def row(mean, m2=5.0, nonfinite=0.0):
    return mean, m2, nonfinite


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({"loss": row(0.75), "gradient": row(1.0), "batch": row(0.0)}, {"grad_norm": 3.0, "loss": 0.75, "nonfinite": 0.0}),
        ({"loss": row(0.75)}, {"loss": 0.75, "nonfinite": 0.0}),
        ({}, {"nonfinite": 0.0}),
        (
            {"loss": row(np.inf, NAN, 4.0), "gradient": row(np.inf, NAN, 2.0), "batch": row(NAN, NAN, 3.0)},
            {"grad_norm": np.inf, "loss": np.inf, "nonfinite": 6.0},
        ),
    ],
)
def test_the_numbers_of_the_whole_step_are_those_of_all_rows(measured, expected):
    numbers = GlobalNumbers(RowIndex(TENSORS, TENSORS))
    of_whole = numbers.of_whole(moments_of(measured))
    assert of_whole == {f"run/{name}": value for name, value in expected.items()}
    assert list(of_whole.items()) == list(numbers(moments_of(measured), NAN).items())


def test_norms_of_rows_are_not_numbers_of_the_whole_step():
    numbers = GlobalNumbers(RowIndex(TENSORS, TENSORS))
    moments = moments_of({"grad": row(1.0), "param": row(0.0, 16.0), "update": row(0.0, 4.0), "loss": row(0.75)})
    found = numbers(moments, 2.5)
    assert found == {
        **{"run/grad_norm": 3.0, "run/param_norm": 4.0, "run/update_ratio": 0.5, "run/noise_scale": 2.5},
        **{"run/loss": 0.75, "run/nonfinite": 0.0},
    }
