"""The rule on the first loss knows a mean cross entropy by its gradient, and chance by the number of outputs."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from lightning_hooks import HealthMonitor, StatsMonitor, instrument
from lightning_hooks.health.rules.first_loss import InitialLoss
from lightning_hooks.records.facts import ParameterFacts
from tests.health.rules.made import Made, diagnosed, found, reason, run, structure_of

MODEL = structure_of({"encoder": "Linear", "head": "Linear"}, weights={"head": (10, 64)})
SAMPLES = 32


def classifying(loss, largest=1 / SAMPLES, mean=0.0, ranks=1, **options):
    """A run whose head of ten classes has the gradient of a mean cross entropy."""
    slope = Made(mean=mean, std=0.3 / SAMPLES, low=-largest, high=largest, count=10 * SAMPLES * ranks)
    return run(MODEL, {("output_grad", "head"): slope}, loss=loss, **options)


def test_a_first_loss_far_above_chance_is_told_after_ten_updates_and_ends_with_the_loss():
    diagnosis = diagnosed(InitialLoss(), classifying(lambda step: 396.0 if step < 40 else 1.0))
    (finding,) = diagnosis.findings
    assert (finding.rows, finding.severity, finding.first_step, finding.rule) == (("head",), "warning", 0, "InitialLoss")
    assert finding.message == "head: the loss began at 396, and ln(10), the loss of guesses, is 2.3."
    assert finding.last_step < 60


@pytest.mark.parametrize(
    "views",
    [
        classifying(lambda step: 4.5),
        classifying(lambda step: 396.0 if step < 5 else 2.3),
        classifying(lambda step: 2.3 if step < 5 else 396.0),
        classifying(lambda step: 396.0, largest=1.0),
        classifying(lambda step: 396.0, mean=0.01),
        classifying(lambda step: 396.0, begin=10),
        classifying(lambda step: float("inf")),
    ],
    ids=["near chance", "a few updates", "a later rise", "a sum", "another loss", "a resume", "not finite"],
)
def test_other_losses_are_no_finding(views):
    assert found(InitialLoss(), views) == {}


def test_a_head_that_has_the_weight_of_an_embedding_is_judged_too():
    table = ParameterFacts("encoder.weight", "encoder", (10, 64), "float32", ("head.weight",))
    views = [replace(view, structure=replace(MODEL, parameters=(table,))) for view in classifying(lambda step: 396.0)]
    assert found(InitialLoss(), views) == {"head": 0}


def test_each_rank_has_a_mean_of_its_own():
    views = [replace(view, ranks=2) for view in classifying(lambda step: 396.0, ranks=2)]
    assert found(InitialLoss(), views) == {"head": 0}


def test_it_says_what_it_lacks():
    assert reason(InitialLoss(), run(MODEL, {("output_grad", "head"): Made()}, loss=None)) == "no row has `loss`"


@pytest.mark.parametrize(
    ("scale", "reduction", "is_told"),
    [(1.0, "mean", False), (100.0, "mean", True), (1.0, "sum", False), (100.0, "sum", False)],
)
def test_logits_of_a_hundred_times_the_size_are_told_unless_losses_are_summed(scale, reduction, is_told):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 10))
    with torch.no_grad():
        model[2].weight.mul_(scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with instrument(model, [StatsMonitor(), health := HealthMonitor()], optimizer=optimizer) as watched:
        for _ in range(25):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(10, (16,)), reduction=reduction)
            watched.note_loss(loss)
            loss.backward()
            optimizer.step()
    assert ("InitialLoss" in [each.rule for each in health.findings]) is is_told
