"""Rules on batches and targets tell what lookouts have seen of them; what may be meant is a note."""

import numpy as np
import pytest

from lightning_hooks.health.rule import Severity
from lightning_hooks.health.rules.batches import BatchesRepeat, BatchStuck, EpochsRepeat, LossFollowsOrder, WorkersRepeat
from lightning_hooks.health.rules.data import BatchOfZeros, InputColumnConstant, InputColumnScale, InputColumnZero
from lightning_hooks.health.rules.targets import (
    EndNeverTarget,
    TargetsAreInputs,
    TargetsChange,
    TargetsConstant,
    TargetsIgnored,
    TargetsMisplaced,
)
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
        (TargetsMisplaced(), Severity.WARNING),
        (TargetsChange(), Severity.WARNING),
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


def in_order(level, steps=256, repeats=True, share=0.1):
    """What is said of a fixed order of batches with this loss at each step, up to noise."""
    noise = np.random.default_rng(0).uniform(-share, share, steps)
    sightings = (Sighting("batches-repeat", "the same batches come again"),) if repeats else ()
    facts = StepFacts(looked_for=LossFollowsOrder().looks_for, sightings=sightings)
    loss = lambda step: float(level(step) * (1 + noise[step]))  # noqa: E731
    return diagnosed(LossFollowsOrder(), run(MODEL, {}, steps, loss=loss, facts=facts)).findings


def waves(step, height=1.0, period=80):
    """A loss that rises and falls while it falls on the whole."""
    return np.exp(height * np.cos(2 * np.pi * step / period) - step / 400)


def test_a_loss_that_comes_again_with_the_batches_follows_their_order():
    (finding,) = in_order(waves)
    assert finding.severity == Severity.WARNING
    assert finding.message.startswith("The same batches come in the same order, and the loss follows it: it rises from ")
    assert finding.message.endswith(", and does so again after about 80 steps.")


@pytest.mark.parametrize(
    ("level", "options"),
    [
        (waves, {"repeats": False}),
        (lambda step: waves(step, height=0.2), {}),
        (lambda step: np.exp(-step / 100), {}),
        (lambda step: 1.0, {"share": 0.9}),
        (lambda step: 20.0 if 100 < step < 140 else 1.0, {}),
        (waves, {"steps": 130}),
    ],
    ids=["a shuffled order", "small waves", "a fall", "noise", "one rise", "a short run"],
)
def test_other_losses_do_not_follow_the_order_of_batches(level, options):
    assert not in_order(level, **options)
