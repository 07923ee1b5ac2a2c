"""Bands hold the numbers that they were learned from, and tell how far others are outside."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_hooks.comparing.bands import SHARE, BandLearner, joined

STEPS = np.arange(100)
KEY = ("grad", "norm")


def learned(values: np.ndarray, key: tuple[str, str] = KEY, scale: float | None = None) -> BandLearner:
    learner = BandLearner(key, ["a"], scale)
    for part in np.array_split(np.arange(len(values)), 4):
        learner.add(STEPS[part], values[part][:, None])
    return learner


def outside(bands, values: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    return bands.outside(values[:, None], *bands.around(STEPS))[:, 0]


def test_numbers_that_were_learned_are_inside_and_others_outside_by_their_factor() -> None:
    values = np.full(100, 2.0)
    bands = learned(values).bands()
    assert (outside(bands, values) == 0).all()
    np.testing.assert_allclose(outside(bands, 3 * values), np.log(3))
    np.testing.assert_allclose(outside(bands, values / 4), -np.log(4))
    assert bands.value(bands.low[0, 0]) == pytest.approx(2.0)


def test_a_run_may_be_ahead_or_behind() -> None:
    bands = learned(1 / (1 + STEPS / 10)).bands()
    assert (outside(bands, 1 / (1 + STEPS / 15)) == 0).all()
    # Behind its last steps the good run cannot say what comes.
    assert (outside(bands, 1 / (1 + STEPS / 7))[:50] == 0).all()
    assert outside(bands, np.full(100, 1.0))[99] > np.log(2)


def test_the_noise_is_that_of_neighbouring_numbers_without_the_trend() -> None:
    noise = np.exp(0.1 * np.random.default_rng(0).standard_normal(100))
    (found,) = learned(noise * 1.01 ** -STEPS.astype(float)).bands().noise
    assert 0.07 < found < 0.14


def test_rows_that_were_not_measured_are_unknown() -> None:
    values = np.where(STEPS < 50, np.nan, 1.0)
    bands = learned(values).bands()
    assert np.isnan(outside(bands, np.ones(100))[0]) and outside(bands, np.ones(100))[99] == 0
    assert np.isnan(outside(bands, np.full(100, np.nan))).all()


def test_shares_near_zero_are_nearly_equal() -> None:
    bands = learned(np.full(100, 0.001), ("input", SHARE)).bands()
    assert abs(outside(bands, np.full(100, 0.0))[50]) < np.log(1.1)
    assert outside(bands, np.full(100, 0.5))[50] > np.log(20)
    assert bands.value(bands.low[0, 0]) == pytest.approx(0.001)


def test_a_loss_that_may_be_negative_is_compared_by_its_difference() -> None:
    bands = learned(np.sin(STEPS / 5), ("loss", "mean"), scale=0.5).bands()
    assert outside(bands, np.full(100, -5.0))[50] < -1 and bands.value(bands.low.min()) == pytest.approx(-1, abs=0.01)


def test_runs_together_have_the_widest_band_and_their_distance() -> None:
    one, two = learned(np.full(100, 1.0)).bands(), learned(np.full(100, 3.0)).bands()
    both = joined([one, two])
    assert (outside(both, np.full(100, 2.0)) == 0).all()
    np.testing.assert_allclose(both.spread, np.log(3))
    other = BandLearner(KEY, ["b"])
    other.add(STEPS, np.ones((100, 1)))
    assert joined([one, other.bands()]).names == ("a", "b")
