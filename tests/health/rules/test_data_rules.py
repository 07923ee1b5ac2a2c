"""Rules on batches and targets tell what lookouts have seen of them; what may be meant is a note."""

import pytest

from lightning_hooks.health.rule import Severity
from lightning_hooks.health.rules.batches import BatchesRepeat, BatchStuck, EpochsRepeat, WorkersRepeat
from lightning_hooks.health.rules.data import BatchOfZeros, InputColumnConstant, InputColumnScale, InputColumnZero
from lightning_hooks.health.rules.targets import EndNeverTarget, TargetsAreInputs, TargetsConstant, TargetsIgnored
from lightning_hooks.health.rules.waiting import WaitsForData
from lightning_hooks.records.facts import Sighting, StepFacts
from tests.health.rules.made import diagnosed, run, structure_of

MODEL = structure_of({"fc": "Linear"})


@pytest.mark.parametrize(
    ("rule", "severity"),
    [
        (WorkersRepeat(), Severity.WARNING),
        (EpochsRepeat(), Severity.WARNING),
        (BatchStuck(), Severity.WARNING),
        (BatchesRepeat(), Severity.INFO),
        (TargetsIgnored(), Severity.WARNING),
        (TargetsConstant(), Severity.WARNING),
        (EndNeverTarget(), Severity.INFO),
        (TargetsAreInputs(), Severity.INFO),
        (WaitsForData(), Severity.INFO),
        (BatchOfZeros(), Severity.WARNING),
        (InputColumnZero(), Severity.WARNING),
        (InputColumnScale(), Severity.WARNING),
        (InputColumnConstant(), Severity.INFO),
    ],
    ids=lambda each: getattr(each, "name", each),
)
def test_each_kind_of_sighting_is_told_as_it_is_worth(rule, severity):
    for kind in rule.looks_for:
        facts = StepFacts(looked_for=rule.looks_for, sightings=(Sighting(kind, "the same batches come again"),))
        (finding,) = diagnosed(rule, run(MODEL, {}, steps=10, facts=facts)).findings
        assert (finding.rows, finding.severity) == (("",), severity)
        assert finding.message == "The same batches come again."
