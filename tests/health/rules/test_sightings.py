"""Rules on what lookouts have seen tell each sighting as long as it holds, with its line, and say when nothing has looked."""

from dataclasses import replace

import pytest

from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.rules import DEFAULT_RULES
from lightning_hooks.health.rules.data import BatchOfZeros
from lightning_hooks.health.rules.order import (
    AccumulationNotDivided,
    ClearedBeforeStep,
    ClippingMisplaced,
    GradientsKept,
    GradientsOfAnotherLoss,
)
from lightning_hooks.records.facts import Sighting, StepFacts
from tests.health.rules.made import diagnosed, found, reason, run, structure_of

MODEL = structure_of({"fc": "Linear"})
RULES = [rule for rule in DEFAULT_RULES if rule.looks_for]


def facts_of(rule, **fields):
    sighting = Sighting(rule.looks_for[0], "something is not right", **fields)
    return StepFacts(looked_for=rule.looks_for, sightings=(sighting,))


def seen(rule, steps=10, **fields):
    return run(MODEL, {}, steps=steps, facts=facts_of(rule, **fields))


def test_a_sighting_is_told_at_its_rows_with_the_line_of_code():
    (finding,) = diagnosed(GradientsKept(), seen(GradientsKept(), rows=("fc",), line="train.py:7 in fit")).findings
    assert (finding.rows, finding.first_step) == (("fc",), 0)
    assert finding.message == "fc: something is not right (train.py:7 in fit)."


def test_a_finding_ends_when_nothing_is_seen_any_more():
    views = seen(GradientsKept())
    views += [replace(each, facts=StepFacts(looked_for=("gradients-kept",))) for each in run(MODEL, {}, begin=10, steps=10)]
    (finding,) = diagnosed(GradientsKept(), views).findings
    assert finding.is_over is not None


@pytest.mark.parametrize("rule", [ClearedBeforeStep(), GradientsOfAnotherLoss(), ClippingMisplaced()])
def test_faults_of_the_order_are_warnings_without_any_harm(rule):
    (finding,) = diagnosed(rule, seen(rule)).findings
    assert (finding.rows, finding.severity, finding.message) == (("",), "warning", "Something is not right.")


def test_a_sum_that_is_not_divided_is_a_note():
    (finding,) = diagnosed(AccumulationNotDivided(), seen(AccumulationNotDivided(), is_fact=False)).findings
    assert finding.severity == "info"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_says_when_nothing_has_looked(rule):
    assert "nothing has looked at this part of the loop" in reason(rule, run(MODEL, {}, facts=StepFacts()))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_sighting_of_another_kind_is_not_its_own(rule):
    views = run(MODEL, {}, facts=StepFacts(looked_for=rule.looks_for, sightings=(Sighting("another", "text"),)))
    assert found(rule, views) == {}


def test_a_note_that_becomes_a_fact_is_raised():
    rule = BatchOfZeros()
    views = run(MODEL, {}, steps=10, facts=facts_of(rule, is_fact=False))
    views += run(MODEL, {}, begin=10, steps=10, facts=facts_of(rule, measured=2.0, threshold=1.0))
    diagnosis = Diagnosis([rule])
    events = [event for view in views for event in diagnosis.add(view) if event.finding is not None]
    assert [(each.kind, each.finding.severity) for each in events] == [("new", "info"), ("raised", "warning")]
