"""Nothing is said of healthy models, every bug is named with its place, and all is restored bit for bit."""

from __future__ import annotations

import pytest

from galleries.checks.case import Pattern
from galleries.checks.catalogue import faulty, healthy
from galleries.checks.judge import judged, naming


@pytest.mark.parametrize("pattern", healthy(), ids=lambda pattern: pattern.name)
def test_nothing_is_said_of_a_healthy_model(pattern: Pattern) -> None:
    verdict = judged(pattern)
    assert verdict.error == ""
    assert verdict.changed == ()
    assert [(each.check, each.status, each.message) for each in verdict.alarms] == []


@pytest.mark.parametrize("pattern", faulty(), ids=lambda pattern: pattern.name)
def test_a_bug_is_named_with_its_place(pattern: Pattern) -> None:
    assert pattern.expected is not None
    verdict = judged(pattern)
    assert verdict.error == ""
    assert verdict.changed == ()
    statuses = [each.status for each in naming(pattern.expected, verdict.alarms)]
    assert pattern.expected.status in statuses, verdict.alarms
