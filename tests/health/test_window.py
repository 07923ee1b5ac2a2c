"""A window keeps the last steps of every key, whichever is filled when."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.errors import RuleError
from lightning_hooks.health.window import EarlyLevel, Window

A, B = ("grad", "norm"), ("loss", "mean")


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 8), st.booleans(), st.booleans()), max_size=30), st.integers(8, 20))
def test_each_key_holds_its_last_numbers_however_seldom_it_is_filled(blocks, size):
    window, step = Window(size), 0
    for length, fill_a, fill_b in [*blocks, (1, True, True)]:
        for _ in range(length):
            window.add_step(step)
            step += 1
        for key, is_due in ((A, fill_a), (B, fill_b)):
            if is_due or window.missing(key) >= 8:
                missing = window.missing(key)
                # A key that was never filled has forgotten the steps that left the window.
                window.fill(key, np.arange(step - missing, step, dtype=float)[:, None])
                np.testing.assert_array_equal(window.read(key)[-min(missing, size) :, 0], window.steps[-min(missing, size) :])
    assert window.steps.tolist() == list(range(max(0, step - size), step))
    for key in (A, B):
        np.testing.assert_array_equal(window.read(key)[:, 0], window.steps)


def test_a_slice_stays_as_it_was_read():
    window = Window(4)
    slices = []
    for step in range(40):
        window.add_step(step)
        window.fill(A, np.array([[float(step)]]))
        slices.append((window.read(A), window.steps, window.read(A).copy()))
    for values, steps, copy in slices:
        np.testing.assert_array_equal(values, copy)
        np.testing.assert_array_equal(values[:, 0], steps)


def test_a_key_without_numbers_at_first_has_nan_there():
    window = Window(4)
    for step in range(3):
        window.add_step(step)
        window.fill(A, np.array([[1.0, 2.0]]) if step == 2 else None)
    np.testing.assert_array_equal(window.read(A), [[np.nan, np.nan], [np.nan, np.nan], [1, 2]])
    assert A in window and B not in window


@pytest.mark.parametrize(
    "state",
    [{}, {"steps": [1, 1], "values": []}, {"steps": [1], "values": [["a", "b", 1, "!"]]}, {"steps": ["x"], "values": []}],
)
def test_damaged_numbers_are_an_error(state):
    with pytest.raises(RuleError, match="window: the saved numbers are damaged"):
        Window.from_state(4, state)


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 40), st.integers(1, 9))
def test_the_early_level_is_the_same_in_any_portions(count, portion):
    values = np.random.default_rng(count).normal(size=(count, 2))
    values[::3, 1] = np.nan
    whole, parts = EarlyLevel(2), EarlyLevel(2)
    whole.add(values)
    for start in range(0, count, portion):
        parts.add(values[start : start + portion])
    again = EarlyLevel.from_state(parts.state())
    for level in (parts, again):
        np.testing.assert_array_equal(level.medians, whole.medians)
    known = values[~np.isnan(values[:, 0]), 0]
    assert np.isnan(whole.medians[0]) if len(known) < 25 else whole.medians[0] == np.median(known[5:25])
