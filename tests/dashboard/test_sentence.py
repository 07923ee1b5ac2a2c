"""What is said of two runs: no more than their numbers show."""

import numpy as np
import pytest

from lightning_hooks.dashboard.api import Api
from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.runs import LocalRuns
from lightning_hooks.dashboard.sentence import comparison, sentence

from .runs import NAMES, STATS, write_run

BLOCKS = [*(f"blocks.{i}.{name}" for i in range(6) for name in ("weight", "bias")), "head.weight"]
RUNS = ("a", "b")
HEAD = "a against b: update ratios are "
NONE = (
    "a against b: update ratios differ in none of the 13 rows that both have by more than a factor of 1.25 or their variation"
)


def noise(steps=100, seed=0, size=0.1):
    """Values around 1 that vary from step to step by about 10 %."""
    return np.exp(size * np.random.default_rng(seed).standard_normal((steps, len(BLOCKS))))


def said(a, b, names=BLOCKS):
    return sentence(names, range(0, 10 * len(a), 10), a, b, "update ratios", RUNS)


def test_a_factor_in_all_rows_of_a_part_is_said_with_its_first_step():
    a = noise()
    a[:, :12] *= 100
    assert said(a, noise()) == f"{HEAD}100 times larger in all 12 rows of blocks, from step 0."
    assert said(noise(), a) == f"{HEAD}100 times smaller in all 12 rows of blocks, from step 0."
    a = noise()
    a[40:, :12] *= 100
    assert said(a, noise()) == f"{HEAD}100 times larger in all 12 rows of blocks, from step 400."


def test_both_directions_and_ranges():
    a = noise()
    a[:, 0:2] *= 50
    a[:, 2] *= 1000
    a[:, 12] /= 8
    larger, smaller = "50 to 1,000 times larger in 3 of 12 rows of blocks", "8 times smaller in head.weight"
    assert said(a, noise()) == f"{HEAD}{larger}, from step 0; {smaller}, from step 0."


def test_nothing_is_said_within_the_variation():
    assert said(noise(seed=1), noise()).startswith(NONE)
    loud = noise(size=2.0)  # every step differs from the one before by more than a factor of 3
    assert said(1.8 * loud, noise(seed=3, size=2.0)).startswith(NONE)
    spike = noise(seed=1)
    spike[50:53] *= 1000
    assert said(spike, noise()).startswith(NONE)
    end = noise(seed=1)
    end[-3:] *= 1000  # too few steps to say that they last
    assert said(end, noise()).startswith(NONE)


def test_equal_runs_are_equal():
    assert said(noise(), noise()) == "a against b: update ratios are equal in all 13 rows, at all 100 common steps."
    text = sentence(["x"], [1, 5], np.ones((2, 1)), np.ones((2, 1)), "norms", RUNS, total=900)
    assert text == "a against b: norms are equal in the one row, at the 2 of 900 common steps that were compared."


def test_rows_that_are_zero_or_without_a_value_in_one_run():
    a, b = noise(seed=1), noise()
    b[:, :2] = 0
    a[30:, 12] = np.nan
    assert said(a, b) == (
        f"{HEAD}exactly 0 in both rows of blocks.0 of b alone; without a finite value in head.weight of a alone, from step 300."
    )
    zeros = np.zeros((20, 1))
    assert said(zeros, zeros, ["x"]) == "a against b: update ratios are equal in the one row, at all 20 common steps."
    assert said(zeros, np.full((20, 1), np.nan), ["x"]).startswith(
        "a against b: update ratios are without a finite value in x of b"
    )


def test_short_runs_have_no_certain_difference():
    assert said(np.full((1, 1), 5.0), np.ones((1, 1)), ["x"]) == f"{HEAD}5 times larger in x, from step 0."
    assert "differ not by more" in said(np.full((1, 1), 1.2), np.ones((1, 1)), ["x"])


def test_runs_are_read_at_their_common_steps_and_rows(tmp_path):
    def norms(factor):
        def change(step, values):
            values["norm"][:] = factor * (1 + step % 3 / 10)

        return change

    write_run(tmp_path / "a", range(1500), change=norms(64))
    write_run(tmp_path / "b", range(0, 3000, 2), names=NAMES[:3], change=norms(1))
    a, b = LocalRun(tmp_path / "a"), LocalRun(tmp_path / "b")
    assert comparison(a, b, "grad", "norm", RUNS) == {
        "text": "a against b: grad norms are 64 times larger in all 3 rows of net, from step 0."
    }
    assert comparison(a, b, "grad", "mean", RUNS) == {"text": None}  # a mean has no ratio
    write_run(tmp_path / "c", range(1, 9, 2), names=["other"])
    write_run(tmp_path / "d", range(5000, 5009))
    assert [comparison(a, LocalRun(tmp_path / other), "grad", "norm", RUNS)["text"] for other in ("c", "d")] == [
        "a against b: grad norms have no row in common.",
        "a against b: grad norms have no step in common.",
    ]


@pytest.mark.parametrize(
    ("args", "status"),
    [({"other": "b"}, 200), ({}, 400), ({"other": "none"}, 404), ({"other": "b", "stat": "no"}, 404)],
    ids=["both", "one", "no_run", "no_table"],
)
def test_requests(tmp_path, args, status):
    for run in RUNS:
        write_run(tmp_path / run, range(3), change=lambda step, values: [values[stat].fill(1) for stat in STATS])
    answer = Api(LocalRuns(tmp_path))("comparison", {"run": "a", "tensor": "grad", "stat": "norm", **args})
    assert answer.status == status
