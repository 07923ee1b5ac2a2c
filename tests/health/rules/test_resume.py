"""The rules on the seam of a resume tell what is lost, note what may be on purpose, and compare the loss before and after."""

import numpy as np
import pytest

from lightning_hooks.health.rules.resume import LossAfterResume, ResumedOtherwise, StateNotRestored, what_is_lost
from lightning_hooks.records.facts import Sighting, StepFacts
from tests.health.rules.made import diagnosed, found, run, structure_of

MODEL = structure_of({"fc": "Linear"})
NOISE = np.random.default_rng(0).normal(0, 0.05, 200)


def seen(kind, text, loss=lambda step: 1.0, steps=30, **fields):
    facts = StepFacts(looked_for=(kind,), sightings=(Sighting(kind, text, **fields),))
    return run(MODEL, {}, steps=steps, facts=facts, loss=loss)


def test_a_state_that_is_lost_is_a_warning_and_one_that_may_be_left_on_purpose_a_note():
    text = "the fit goes on at step 40 without the moments of Adam"
    (finding,) = diagnosed(StateNotRestored(), seen("state-lost", text)).findings
    assert (finding.severity, finding.message) == ("warning", "The fit goes on at step 40 without the moments of Adam.")
    (finding,) = diagnosed(StateNotRestored(), seen("state-lost", text, is_fact=False)).findings
    assert finding.severity == "info"


def test_what_is_lost_is_told_by_the_cause_of_what_follows():
    diagnosis = diagnosed(StateNotRestored(), seen("state-lost", "the fit goes on at step 40 without the moments of Adam"))
    assert diagnosis.causes == []
    assert what_is_lost(diagnosis.evidence, 3) == " The fit goes on at step 40 without the moments of Adam."


def test_another_rate_is_a_note():
    (finding,) = diagnosed(ResumedOtherwise(), seen("resumed-otherwise", "the rate is another", is_fact=False)).findings
    assert finding.severity == "info"


def resumed(after, seam=60):
    views = seen(
        "resumed", "", lambda step: (2.0 if step < seam else after(step)) + NOISE[step], steps=seam + 20, measured=float(seam)
    )
    return diagnosed(LossAfterResume(), views).findings


def test_a_loss_that_is_higher_after_the_resume_is_a_note_with_its_numbers():
    (finding,) = resumed(lambda step: 2.6)
    assert (finding.severity, finding.message) == (
        "info",
        "The loss is 2.602 in the 10 steps since the fit goes on at step 60, and was 2 before.",
    )


@pytest.mark.parametrize("after", [lambda step: 2.0, lambda step: 1.5, lambda step: 4.0 if step == 62 else 2.0])
def test_a_loss_that_goes_on_is_no_finding(after):
    assert resumed(after) == []


def test_a_resume_in_the_first_steps_has_no_level_to_compare_with():
    assert found(LossAfterResume(), seen("resumed", "", lambda step: float(step), measured=20.0)) == {}
