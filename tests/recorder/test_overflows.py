"""Overflows that a loss scaler expects, and those that are faults."""

from hypothesis import given
from hypothesis import strategies as st

from lightning_hooks.recorder.overflows import Overflows


def test_a_scaler_may_look_for_its_scale_from_the_start():
    overflows = Overflows()
    assert not any(overflows.is_fault(2.0**k) for k in range(16, 0, -1))
    assert overflows.is_fault(1.0) and overflows.is_fault(0.5)


@given(st.integers(4, 40), st.integers(0, 40))
def test_after_a_good_step_three_halvings_are_a_fault(good, halvings):
    overflows = Overflows()
    overflows.note_good(2.0**good)
    scale = 2.0 ** (good - halvings)
    assert overflows.is_fault(scale) == (halvings >= 3 or scale <= 1.0)
