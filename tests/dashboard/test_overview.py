"""What the overview reads of a run: the norms before and after clipping, at the same step, and only if they differ."""

import pytest

from lightning_hooks.dashboard.overview import overview
from lightning_hooks.dashboard.runs import LocalRuns

from .runs import write_scalars


def shown(folder):
    found = overview(LocalRuns(folder).open("."))
    return found["run"], found["last"]


def test_norms_before_and_after_clipping_are_compared_at_the_same_step(tmp_path):
    """The norm after clipping is measured at fewer steps than the norm before."""
    for step in range(25):
        write_scalars(tmp_path, [step], watch__run__grad_norm=2.0 + step)
    for step in (9, 19):
        write_scalars(tmp_path, [step], watch__run__final_grad_norm=2.0)
    tags, last = shown(tmp_path)
    assert {*tags} == {"watch/run/grad_norm", "watch/run/final_grad_norm"}
    assert last == {
        "watch/run/grad_norm": {"step": 19, "value": 21.0},
        "watch/run/final_grad_norm": {"step": 19, "value": 2.0},
    }


@pytest.mark.parametrize("value", [3.0, float("nan")])
def test_a_norm_after_clipping_that_never_differs_is_not_shown(tmp_path, value):
    write_scalars(tmp_path, range(25), watch__run__grad_norm=value)
    write_scalars(tmp_path, [9, 19], watch__run__final_grad_norm=value)
    assert shown(tmp_path) == (["watch/run/grad_norm"], {})


def test_norms_without_a_common_step_are_shown_as_they_are(tmp_path):
    write_scalars(tmp_path, [1, 3], run__grad_norm=3.0)
    write_scalars(tmp_path, [2, 4], run__final_grad_norm=3.0)
    assert shown(tmp_path) == (["run/grad_norm", "run/final_grad_norm"], {})
