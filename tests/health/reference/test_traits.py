"""The traits of rows: what is always true of them in good runs."""

from __future__ import annotations

import numpy as np
import torch

from lightning_hooks.health.reference.trait_learning import TraitLearner
from lightning_hooks.health.reference.traits import MOST_COUNTS, Traits, jumps, merged, significant_digits


def test_the_digits_of_formats() -> None:
    source = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for kind, most in ((torch.bfloat16, 8), (torch.float16, 11), (torch.float32, 24)):
        digits = significant_digits(source.to(kind).double().numpy())
        assert digits.max() == most and (digits > 0).all()
    assert (significant_digits(source.double().numpy()) <= 11).mean() < 0.002
    assert significant_digits(np.array([np.nan, np.inf, 0.0])).tolist() == [0, 0, 0]


def moved(*weights: float, update: float, gaps: int = 1) -> np.ndarray:
    """How far a weight of four equal elements moved, as a multiple of its updates."""
    lines = len(weights)
    values = np.array(weights)[:, None]
    numbers = {
        "mean": values,
        "std": np.zeros((lines, 1)),
        "abs_max": np.abs(values),
        "count": np.full((lines, 1), 4.0),
        "norm": 2 * np.abs(values),
        "update": np.full((lines, 1), 2 * update),
        "update_max": np.full((lines, 1), update),
    }
    return jumps(gaps * np.arange(lines), numbers).multiples[:, 0]


def test_a_weight_that_its_updates_move_has_a_multiple_of_one_at_most() -> None:
    np.testing.assert_allclose(moved(1.0, 0.9, 0.8, update=0.1), 1.0, rtol=1e-3)
    np.testing.assert_allclose(moved(1.0, 0.5, update=0.1, gaps=5), 1.0, rtol=1e-3)
    np.testing.assert_allclose(moved(1.0, 2.0, update=0.1), 10.0, rtol=1e-3)


def test_rounding_is_no_jump() -> None:
    assert moved(1.0, 1.0 + 1e-7, update=0.0)[0] < 0.1


def test_more_than_a_few_counts_are_not_compared() -> None:
    learner, due = TraitLearner(), np.ones((10, 1), dtype=bool)
    for first in (0, 10):
        steps = np.arange(first, first + 10)
        numbers = {"count": 64.0 + steps[:, None], "min": -np.ones((10, 1)), "max": np.ones((10, 1))}
        learner.add("output", ["a"], steps, numbers, due)
    assert learner.traits()["output"].counts == {"a": ()}
    assert MOST_COUNTS < 20


def test_two_runs_agree_or_a_trait_is_not_compared() -> None:
    one = Traits({"a": True, "b": False}, {}, {"a": (4,)}, {"a": (7, 8)}, {"a": 1.0}, {"a": 0.0})
    two = Traits({"a": True, "b": True, "c": True}, {}, {"a": (8,)}, {"a": (8, 24)}, {"a": 2.0}, {"a": 0.5})
    assert merged([one, two]) == Traits(
        {"a": True, "b": None, "c": True}, {}, {"a": (4, 8)}, {"a": (7, 24)}, {"a": 2.0}, {"a": 0.5}
    )


def test_rows_that_were_not_due_say_nothing() -> None:
    learner = TraitLearner()
    counts = np.array([[4.0, 0.0]] * 4 + [[4.0, 4.0]] * 4)
    learner.add("grad", ["a", "b"], np.arange(8), {"count": counts}, counts > 0)
    assert learner.traits()["grad"].present == {"a": True, "b": True}
