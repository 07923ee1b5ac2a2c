"""A rule on a spike quotes the rows of the batch that a lookout or the facts of the run know of its step."""

from dataclasses import replace

import pytest

from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.rules.loss import LossSpike
from lightning_hooks.records.facts import Sighting, StepFacts
from tests.health.rules.made import run, structure_of

MODEL = structure_of({"fc": "Linear"})
SPIKE = 90
TEXT = "row 3 of the 16 in the batch of step 90 holds 93 % of the squared gradient at fc"


def spiking():
    return run(MODEL, {}, steps=100, loss=lambda step: 50.0 if step == SPIKE else 3.0 + 0.01 * (step % 7))


def message(views, ask=None):
    diagnosis = Diagnosis([LossSpike()])
    diagnosis.evidence.ask = ask
    for view in views:
        diagnosis.add(view)
    diagnosis.finish()
    (finding,) = diagnosis.findings
    return finding.message


def test_the_message_ends_with_the_rows_that_a_lookout_knows():
    asked = []

    def ask(step):
        asked.append(step)
        return (Sighting("rows-behind", TEXT, at=step),)

    assert message(spiking(), ask).endswith(f". R{TEXT[1:]}.")
    assert asked == [SPIKE]


@pytest.mark.parametrize(("at", "is_told"), [(SPIKE, True), (SPIKE - 1, False)])
def test_of_a_file_the_facts_of_later_steps_tell_it(at, is_told):
    facts = StepFacts(looked_for=("rows-behind",), sightings=(Sighting("rows-behind", TEXT, at=at),))
    views = [replace(each, facts=facts if each.step == SPIKE + 1 else StepFacts()) for each in spiking()]
    assert message(views).endswith(f". R{TEXT[1:]}.") is is_told


def test_without_a_lookout_the_message_is_as_before():
    assert message(spiking()) == "The loss jumps to 50 at step 90, and had not been above 3.06."
