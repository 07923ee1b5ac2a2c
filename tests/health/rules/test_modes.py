"""Rules on the modes in which a model is evaluated."""

import pytest

from lightning_hooks.health.rules.modes import DropoutInEvaluation, EvaluationInTrainingMode
from lightning_hooks.records.facts import Sighting, StepFacts
from tests.health.rules.made import diagnosed, run, structure_of


@pytest.mark.parametrize(("rule", "severity"), [(EvaluationInTrainingMode(), "info"), (DropoutInEvaluation(), "warning")])
def test_a_call_in_the_wrong_mode_is_told_with_its_line(rule, severity):
    facts = StepFacts(
        looked_for=rule.looks_for, sightings=(Sighting(rule.looks_for[0], "it drops elements", line="a.py:3 in validate"),)
    )
    (finding,) = diagnosed(rule, run(structure_of({"fc": "Linear"}), {}, steps=6, facts=facts)).findings
    assert (str(finding.severity), finding.message) == (severity, "It drops elements (a.py:3 in validate).")
