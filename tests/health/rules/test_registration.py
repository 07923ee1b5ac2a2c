"""The rule on parts that are not registered leaves out those whose names say that they are copies."""

import pytest

from lightning_hooks.health.rules.registration import NotRegistered
from lightning_hooks.records.facts import Sighting, StepFacts
from tests.health.rules.made import found, run, structure_of


@pytest.mark.parametrize(("name", "is_told"), [("net.blocks", True), ("_teacher", False), ("loss.lpips", False)])
def test_lists_of_copies_are_left_out(name, is_told):
    facts = StepFacts(looked_for=("not-registered",), sightings=(Sighting("not-registered", "it is a list", (name,)),))
    views = run(structure_of({"fc": "Linear"}), {}, steps=10, facts=facts)
    assert found(NotRegistered(), views) == ({name: 0} if is_told else {})
