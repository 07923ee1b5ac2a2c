"""Rules on schedules tell what lookouts have seen of them; what may be meant is a note until the loss shows harm."""

import pytest

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.rules.schedules import (
    LearningRateFallen,
    ScheduleAdvancesEachBatch,
    ScheduleAtOtherPace,
    ScheduleEndsEarly,
    WarmUpOutlastsFit,
)
from lightning_hooks.health.usage import is_warming_up
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, Sighting, StepFacts
from lightning_hooks.records.step_view import StepView
from tests.health.rules.made import diagnosed, run, structure_of

MODEL = structure_of({"fc": "Linear"})


def severity_of(rule, loss, **fields):
    sighting = Sighting(rule.looks_for[0], "the schedule ends after 5 advances", **fields)
    facts = StepFacts(looked_for=rule.looks_for, sightings=(sighting,))
    (finding,) = diagnosed(rule, run(MODEL, {}, loss=loss, facts=facts)).findings
    assert (finding.message, finding.first_step) == ("The schedule ends after 5 advances.", 0)
    return finding.severity


def test_another_pace_is_a_warning_whatever_the_loss_does():
    assert severity_of(ScheduleAtOtherPace(), lambda step: 0.9**step) == "warning"


@pytest.mark.parametrize("rule", [ScheduleEndsEarly(), WarmUpOutlastsFit(), LearningRateFallen()], ids=lambda rule: rule.name)
def test_another_length_is_a_warning_if_the_loss_stands_still(rule):
    assert severity_of(rule, lambda step: 3.0, is_fact=False) == "warning"
    assert severity_of(rule, lambda step: 0.9**step, is_fact=False) == "info"


def test_a_schedule_that_advances_at_each_batch_stays_a_note():
    assert severity_of(ScheduleAdvancesEachBatch(), lambda step: 3.0) == "info"


@pytest.mark.parametrize(("kinds", "warms_up"), [((), True), (("warm-up-endless",), False)])
def test_a_warm_up_that_outlasts_the_fit_excuses_no_loss(kinds, warms_up):
    evidence = Evidence()
    for step in range(10):
        optimizers = (OptimizerFacts("SGD", (GroupFacts(0.1 * step, 0.0, ("fc",)),)),)
        sightings = tuple(Sighting(kind, "text") for kind in kinds)
        evidence.add(StepView(step, facts=StepFacts(optimizers, last_step=100, sightings=sightings)))
    assert is_warming_up(evidence) is warms_up
