"""The text of a window in an event file: what `records/saved_window.py` writes is read, and anything else is ignored."""

import numpy as np
import pytest

from lightning_hooks.records.saved_window import to_text
from lightning_hooks.records.step_view import StepWindow
from lightning_hooks.tensorboard.saved_windows import SavedWindow, read_window


def test_what_is_written_is_read():
    extremes = {"run/loss": (0.5, float("inf")), "lr/0/0": (0.1, 0.1)}
    assert read_window(to_text(StepWindow(8, 4, np.ones(2), extremes)), 15) == SavedWindow(8, 4, extremes)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"first": 16, "count": 2}', '{"first": 8, "count": 0}', '{"first": true, "count": 2}']
    + [
        '{"first": 8.5, "count": 2}',
        '{"first": "8", "count": 2}',
        '{"first": -4611686018427387904, "count": 2}',
        "[" * 100_000,
    ],
)
def test_a_text_that_is_damaged_is_no_window(text):
    assert read_window(text, 15) is None


def test_extremes_that_are_damaged_are_left_out():
    text = '{"first": 8, "count": 2, "extremes": {"a": [1], "b": "x", "c": [1, "nan"], "d": [1, 2, 3], "e": [0, 1]}}'
    window = read_window(text, 15)
    assert window is not None and {*window.extremes} == {"c", "e"} and window.extremes["e"] == (0.0, 1.0)
    assert read_window('{"first": 8, "count": 2, "extremes": 3}', 15) == SavedWindow(8, 2)
