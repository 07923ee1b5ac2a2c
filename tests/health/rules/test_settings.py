"""Rules on settings tell what lookouts have seen of them; betas that may be meant are a note until the loss shows harm."""

import pytest

from lightning_hooks.health.rules.settings import BetasSwapped, EpsilonVanishes
from lightning_hooks.records.facts import Sighting, StepFacts
from tests.health.rules.made import diagnosed, run, structure_of


def severity_of(rule, loss, **fields):
    facts = StepFacts(looked_for=rule.looks_for, sightings=(Sighting(rule.looks_for[0], "it is seen", **fields),))
    (finding,) = diagnosed(rule, run(structure_of({"fc": "Linear"}), {}, loss=loss, facts=facts)).findings
    assert (finding.message, finding.first_step) == ("It is seen.", 0)
    return finding.severity


def falls(step):
    return 0.9**step


def test_betas_are_a_warning_if_nobody_means_them_or_the_loss_stands_still():
    assert severity_of(BetasSwapped(), falls) == "warning"
    assert severity_of(BetasSwapped(), falls, is_fact=False) == "info"
    assert severity_of(BetasSwapped(), lambda step: 3.0, is_fact=False) == "warning"


@pytest.mark.parametrize("loss", [falls, lambda step: 3.0])
def test_an_eps_of_zero_is_a_warning_whatever_the_loss_does(loss):
    assert severity_of(EpsilonVanishes(), loss) == "warning"
