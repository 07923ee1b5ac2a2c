"""CopyUpdated asks for two witnesses: the memory format of a parameter, and that it alone does not move."""

from dataclasses import replace

import pytest

from lightning_hooks.health.rules.copies import CopyUpdated
from lightning_hooks.records.facts import Sighting
from tests.health.rules.made import Made, diagnosed, found, of_rms, run, weights_of
from tests.health.rules.test_flow import facts_of

NAMES = ("a.weight", "b.weight", "c.weight")
ZERO = Made(std=0.0, low=0.0, high=0.0)


def steps_of(still, strided):
    update = {name: ZERO if name in still else of_rms(0.01) for name in NAMES}
    tensors = {("update", name): each for name, each in update.items()}
    tensors |= {(tensor, name): of_rms(1.0) for tensor in ("grad", "param") for name in NAMES}
    sighting = Sighting("not-contiguous", "the parameter is not contiguous", tuple(strided), is_fact=False)
    facts = replace(facts_of(NAMES), looked_for=("not-contiguous",), sightings=(sighting,))
    return run(weights_of(*NAMES), tensors, facts=facts)


def test_what_is_not_contiguous_and_alone_does_not_move_is_told():
    views = steps_of(("a.weight",), ("a.weight",))
    (finding,) = diagnosed(CopyUpdated(), views).findings
    assert finding.rows == ("a.weight",) and finding.severity == "warning"
    assert "the step writes into a copy" in finding.message


@pytest.mark.parametrize(
    ("still", "strided"),
    [
        ((), ("a.weight",)),
        (("a.weight",), ()),
        (("a.weight",), ("b.weight",)),
        (("a.weight",), ("a.weight", "b.weight")),
        (("a.weight", "b.weight"), ("a.weight",)),
        (NAMES, NAMES),
    ],
    ids=["all move", "contiguous", "another", "one of its format moves", "a contiguous one stands still", "a skipped step"],
)
def test_what_the_memory_format_does_not_explain_is_no_finding(still, strided):
    assert found(CopyUpdated(), steps_of(still, strided)) == {}
