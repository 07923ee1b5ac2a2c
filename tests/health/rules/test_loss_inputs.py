"""Rules on what a loss is given tell shapes that do not fit, and probabilities; what limits logits is a note without harm."""

import pytest

from lightning_hooks.health.rules.loss_inputs import ActivationBeforeLoss, LabelsFitHead
from lightning_hooks.records.facts import Sighting, StepFacts
from tests.health.rules.made import diagnosed, run, structure_of

MODEL = structure_of({"fc": "Linear"})


def findings(rule, steps=20, **fields):
    sighting = Sighting(rule.looks_for[0], "a softmax stands in front of `cross_entropy`", **fields)
    facts = StepFacts(looked_for=rule.looks_for, sightings=(sighting,))
    return diagnosed(rule, run(MODEL, {}, steps=steps, facts=facts)).findings


@pytest.mark.parametrize("rule", [LabelsFitHead(), ActivationBeforeLoss()], ids=lambda rule: rule.name)
def test_what_is_never_right_is_a_warning_of_the_first_step(rule):
    (finding,) = findings(rule)
    assert (finding.first_step, finding.severity) == (0, "warning")
    assert finding.message == "A softmax stands in front of `cross_entropy`."


def test_an_activation_that_only_limits_logits_is_a_note():
    (finding,) = findings(ActivationBeforeLoss(), is_fact=False)
    assert (finding.severity, finding.harm) == ("info", "")


def test_it_is_a_warning_where_the_loss_does_not_fall():
    (finding,) = findings(ActivationBeforeLoss(), steps=100, is_fact=False)
    assert finding.severity == "warning" and finding.harm.startswith("the loss has not fallen")
