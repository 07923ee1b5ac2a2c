"""Nothing is said of healthy models, every bug is named with its place, and all is restored bit for bit.

That is so in the record of all of them, and in a sample that is checked again.
"""

from __future__ import annotations

import pytest

from galleries.checks.case import Pattern
from galleries.checks.catalogue import faulty, healthy
from galleries.checks.judge import Said, judged, naming
from galleries.checks.table import recorded
from galleries.sample import sample

RECORDED = recorded()[0]


@pytest.mark.parametrize("pattern", sample(healthy(), of_each=2), ids=lambda pattern: pattern.name)
def test_nothing_is_said_of_a_healthy_model(pattern: Pattern) -> None:
    verdict = judged(pattern)
    assert verdict.error == ""
    assert verdict.changed == ()
    assert [(each.check, each.status, each.message) for each in verdict.alarms] == []


BUGS = sample(faulty(), of_each=2, family=lambda pattern: pattern.expected and pattern.expected.checks[0])


@pytest.mark.parametrize("pattern", BUGS, ids=lambda pattern: pattern.name)
def test_a_bug_is_named_with_its_place(pattern: Pattern) -> None:
    assert pattern.expected is not None
    verdict = judged(pattern)
    assert verdict.error == ""
    assert verdict.changed == ()
    statuses = [each.status for each in naming(pattern.expected, verdict.alarms)]
    assert pattern.expected.status in statuses, verdict.alarms


def test_in_the_record_nothing_is_said_of_healthy_models_and_all_is_restored() -> None:
    assert {name for name, line in RECORDED.items() if line["error"] or line["changed"] or line["changed_in_fit"]} == set()
    assert {pattern.name for pattern in healthy() if RECORDED[pattern.name]["alarms"]} == set()


def test_in_the_record_every_bug_is_named_with_its_place() -> None:
    unnamed = []
    for pattern in faulty():
        assert pattern.expected is not None
        named = naming(pattern.expected, [Said(**alarm) for alarm in RECORDED[pattern.name]["alarms"]])
        if pattern.expected.status not in [each.status for each in named]:
            unnamed.append(pattern.name)
    assert unnamed == []
