"""The checksum by which ranks notice that their facts differ, and whose facts are published then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.engine.watching.common_facts import CommonFacts, NotedFacts
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from lightning_hooks.stats.host_copy import InHostMemory
from lightning_hooks.stats.merged_state import PendingState
from lightning_hooks.stats.requests import FACTS, NEGATED_FACTS
from lightning_hooks.stats.sections import Sections

GROUP = GroupFacts(0.1, 0.0, ("a.weight", "a.bias"))
PLAIN = StepFacts((OptimizerFacts("SGD", (GROUP,)),), frozen=("b",), precision="32-true", accumulate=1, last_step=9)


def checksum(facts: StepFacts) -> int:
    return CommonFacts(lambda: facts, alone=False).of_rank()[1]


def of_group(**fields: Any) -> StepFacts:
    return replace(PLAIN, optimizers=(OptimizerFacts("SGD", (replace(GROUP, **fields),)),))


@pytest.mark.parametrize(
    "other",
    [
        *(
            of_group(lr=0.2),
            of_group(lr=None),
            of_group(weight_decay=0.1),
            of_group(params=("a.weight",)),
            of_group(strangers=1),
        ),
        replace(PLAIN, optimizers=(OptimizerFacts("Adam", (GROUP,)),)),
        *(replace(PLAIN, frozen=()), replace(PLAIN, frozen=(), evaluating=("b",)), replace(PLAIN, apart=("a.weight",))),
        *(replace(PLAIN, precision=None), replace(PLAIN, accumulate=2), replace(PLAIN, last_step=None)),
        *(replace(PLAIN, validating=()), replace(PLAIN, validating=("b",)), replace(PLAIN, follows_metric=True)),
    ],
)
def test_facts_that_differ_have_another_checksum(other: StepFacts) -> None:
    assert checksum(other) != checksum(PLAIN)


def test_equal_facts_have_the_checksum_of_every_process() -> None:
    assert checksum(of_group(params=tuple(["a.weight", "a.bias"]))) == checksum(PLAIN) == 918187380


def test_the_checksum_follows_facts_that_change_and_many_names() -> None:
    steps = [of_group(params=tuple(f"{step}.{i}" for i in range(3))) for step in range(300)]
    facts = iter([*steps, *steps])
    common = CommonFacts(lambda: next(facts), alone=False)
    assert [common.of_rank()[1] for _ in range(600)] == [*map(checksum, steps)] * 2


def test_facts_of_one_rank_alone_need_no_checksum() -> None:
    assert CommonFacts(lambda: PLAIN, alone=True).of_rank() == (PLAIN, 0)


def test_views_have_the_facts_of_the_view_before_if_the_ranks_learn_too_late_that_theirs_differ() -> None:
    common, other = CommonFacts(lambda: PLAIN, alone=False), replace(PLAIN, last_step=10)
    assert common.of_view(NotedFacts(PLAIN, False), True, 1.0) is None
    first = common.of_view(NotedFacts(PLAIN, False), False, 2.0)
    assert first == replace(PLAIN, loss_scale=2.0)
    assert common.of_view(NotedFacts(other, False), True, 2.0) is first
    assert common.of_view(NotedFacts(other, True), True, 2.0) == replace(other, loss_scale=2.0)


@pytest.mark.parametrize(("greatest", "least", "differ"), [(7.0, 7.0, False), (7.0, 3.0, True), (0.0, 0.0, False)])
def test_facts_differ_if_the_greatest_checksum_is_not_the_least(greatest: float, least: float, differ: bool) -> None:
    sections = Sections(1)
    state = sections.blank().numpy()
    state[sections.requests][[FACTS, NEGATED_FACTS]] = greatest, -least
    assert PendingState(InHostMemory(state), sections).merged.facts_differ is differ
