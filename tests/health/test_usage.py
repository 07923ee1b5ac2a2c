"""Which parameters no optimizer holds, and whether optimizers share a loss."""

from __future__ import annotations

import copy
import pickle

import pytest

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.memo import memo_of
from lightning_hooks.health.usage import losses_may_balance, membership_of, unheld
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, ParameterFacts, StepFacts, Structure
from tests.health.rules.made import Made, of_rms, run

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


def stepped(
    *moves: str, losses: int = 1, needs: tuple[tuple[str, str], ...] = (("loss", "count"), ("update", "ratio"))
) -> Evidence:
    """Evidence of 20 steps of two optimizers, of `a` and of `b`. Each of `moves` says what they change at every other step."""
    held = tuple(OptimizerFacts("SGD", (GroupFacts(0.1, 0.0, (name,)),)) for name in "ab")
    tensors = {("param", name): of_rms(1.0) for name in "ab"}
    for name in "ab":
        tensors["update", name] = lambda step, name=name: of_rms(1e-3) if name in moves[step % len(moves)] else None
    tensors["loss", "loss"] = Made(mean=3.0, std=0.0, count=losses)
    evidence = Evidence(needs)
    for view in run(None, tensors, 20, loss=None, facts=StepFacts(held)):
        evidence.add(view)
    return evidence


def test_optimizers_that_step_together_with_one_loss_share_it() -> None:
    assert not losses_may_balance(stepped("ab"))


@pytest.mark.parametrize(
    "evidence",
    [stepped("ab", losses=2), stepped("a", "b"), stepped("ab", needs=()), stepped("")],
    ids=["two losses", "in turn", "not measured", "no step"],
)
def test_optimizers_with_losses_of_their_own_may_balance(evidence: Evidence) -> None:
    assert losses_may_balance(evidence)
