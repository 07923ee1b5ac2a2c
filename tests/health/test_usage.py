"""Which parameters no optimizer holds."""

from __future__ import annotations

import copy
import pickle

from lightning_hooks.health.memo import memo_of
from lightning_hooks.health.usage import membership_of, unheld
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, ParameterFacts, StepFacts, Structure

STRUCTURE = Structure(parameters=tuple(ParameterFacts(name, "", (2,), "float32") for name in ("a", "b", "target.c")))


def facts_with(*names: str, frozen: tuple[str, ...] = ()) -> StepFacts:
    return StepFacts((OptimizerFacts("SGD", (GroupFacts(0.1, 0.0, tuple(names)),)),), frozen=frozen)


def test_parameters_that_no_optimizer_holds_are_named_without_copies_and_frozen_ones() -> None:
    assert unheld(STRUCTURE, facts_with("a")) == ["b"]
    assert unheld(STRUCTURE, facts_with(frozen=("a",))) == ["b"]


def test_a_changed_group_counts_although_its_names_lie_where_the_old_ones_were() -> None:
    # Python gives the memory of a freed tuple to the next tuple of its size.
    for _ in range(20):
        assert unheld(STRUCTURE, facts_with("a", "b")) == []
        assert unheld(STRUCTURE, facts_with("a", "stranger")) == ["b"]


def test_what_was_computed_is_no_part_of_the_facts() -> None:
    facts = facts_with("a", "b")
    assert membership_of(facts) is membership_of(facts)
    assert facts == facts_with("a", "b") and memo_of(facts)
    for other in (copy.deepcopy(facts), pickle.loads(pickle.dumps(facts))):
        assert other == facts and not memo_of(other)
