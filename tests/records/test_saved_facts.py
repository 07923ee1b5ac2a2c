"""The facts of steps as text: what is read is what was written, and damage is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hooks import RuleError
from lightning_hooks.codec import decode, encode
from lightning_hooks.records.facts import (
    GroupFacts,
    ModuleFacts,
    OptimizerFacts,
    ParameterFacts,
    StepFacts,
    Structure,
)
from lightning_hooks.records.saved_facts import changes, facts_of

names = st.lists(st.text(max_size=4), max_size=3).map(tuple)
rates = st.none() | st.floats(allow_nan=False)
groups = st.builds(GroupFacts, rates, rates, names, st.integers(0, 3))
optimizers = st.lists(st.builds(OptimizerFacts, st.text(max_size=4), st.lists(groups, max_size=2).map(tuple)), max_size=2)
steps = st.builds(
    StepFacts,
    optimizers.map(tuple),
    rates,
    names,
    names,
    st.none() | st.text(max_size=3),
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 9),
    names,
    names,
    st.none() | names,
    st.booleans(),
)


@given(st.lists(steps, min_size=1, max_size=5))
def test_what_is_read_is_what_was_written(listed: list[StepFacts]) -> None:
    before: StepFacts | None = None
    texts = []
    for step, facts in enumerate(listed):
        texts.append((step, changes(before, facts)))
        before = facts
    assert [*facts_of(texts)] == [*enumerate(listed)]


def test_only_a_learning_rate_that_changes_is_written() -> None:
    first, second = (StepFacts((OptimizerFacts("SGD", (GroupFacts(lr, 0.0, ("a",) * 50),)),)) for lr in (0.1, 0.2))
    assert changes(first, second) == '{"rates": [[[0.2, 0.0]]]}'


@pytest.mark.parametrize("text", ["{", "3", '{"members": 3}', '{"rates": [[[0.1]]]}'])
def test_damaged_facts_are_named(text: str) -> None:
    whole = changes(None, StepFacts((OptimizerFacts("SGD", (GroupFacts(0.1, 0.0, ("a",)),)),)))
    with pytest.raises(RuleError, match="the facts of step 7 in the event file are damaged"):
        [*facts_of([(0, whole), (7, text)])]


def test_a_structure_is_lists_without_the_names_of_fields() -> None:
    weight = ParameterFacts("a.weight", "a", (2, 3), "float32", ("b",))
    structure = Structure((ModuleFacts("a", "Linear", "linear"), ModuleFacts("d", "Dropout", "dropout", 0.5)), (weight,))
    saved = encode(structure)
    assert saved == {
        "modules": [["a", "Linear", "linear", None], ["d", "Dropout", "dropout", 0.5]],
        "parameters": [["a.weight", "a", [2, 3], "float32", ["b"]]],
    }
    assert decode(Structure, json.loads(json.dumps(saved)), "structure") == structure


def test_files_of_versions_without_the_newer_facts_can_be_read() -> None:
    old = json.loads(changes(None, StepFacts(frozen=("a",))))
    del old["written"]
    assert [*facts_of([(0, json.dumps(old))])] == [(0, StepFacts(frozen=("a",)))]
    saved = {"modules": [["a", "Linear", "linear"]], "parameters": []}
    assert decode(Structure, saved, "structure") == Structure((ModuleFacts("a", "Linear", "linear"),), ())
