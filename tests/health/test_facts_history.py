"""The history of facts answers for every step of the window, whatever was forgotten or saved."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.health.facts_history import FactsHistory
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts

KINDS = [
    None,
    StepFacts(),
    StepFacts(loss_scale=None, frozen=("a",), evaluating=("norm",), precision="16-mixed", accumulate=2, last_step=9),
    StepFacts((OptimizerFacts("SGD", (GroupFacts(0.1, None, ("a", "b"), 1), GroupFacts(None, 0.0, ()))),)),
]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(range(len(KINDS))), max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_every_step_that_is_not_forgotten_has_its_facts(kinds, begin, end):
    history = FactsHistory()
    for step, kind in enumerate(kinds):
        history.add(step, KINDS[kind])
    history.forget_from(end)
    history.forget_before(begin)
    saved = FactsHistory.from_state(json.loads(json.dumps(history.state())))
    for step in range(begin, min(end, len(kinds))):
        assert history.at(step) is KINDS[kinds[step]] and saved.at(step) == KINDS[kinds[step]]
    if begin < min(end, len(kinds)):
        assert history.last is KINDS[kinds[min(end, len(kinds)) - 1]] and saved.last == history.last


@pytest.mark.parametrize("damage", [[[1, "{"]], [["x", None]], [[1]], 3, [[1, "[]"]]])
def test_damaged_facts_are_an_error(damage):
    with pytest.raises((TypeError, ValueError)):
        FactsHistory.from_state(damage)
