"""Rules on ties: what the code declares is a fact, and what only began as one is a note until the loss stands still."""

from lightning_hooks.health.rules.ties import TieBroken
from lightning_hooks.records.facts import Sighting, StepFacts
from tests.health.rules.made import diagnosed, run, structure_of

MODEL = structure_of({"embed": "Embedding", "head": "Linear"})


def severity(is_fact, loss):
    sighting = Sighting("tie-broken", "it began as a copy of embed.weight", ("head.weight",), is_fact=is_fact)
    facts = StepFacts(looked_for=("tie-broken",), sightings=(sighting,))
    (finding,) = diagnosed(TieBroken(), run(MODEL, {}, loss=loss, facts=facts)).findings
    return finding.severity


def test_a_declared_tie_is_a_warning_and_a_copy_is_one_if_the_loss_stands_still():
    assert severity(True, lambda step: 3 * 0.98**step) == "warning"
    assert severity(False, lambda step: 3 * 0.98**step) == "info"
    assert severity(False, lambda step: 3.0 + step % 3 / 99) == "warning"
