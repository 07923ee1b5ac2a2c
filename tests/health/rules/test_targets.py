"""The rule on targets knows a mean squared error by its gradient, and how far the output is from what it should be."""

from dataclasses import replace

import numpy as np
import pytest

from lightning_hooks.health.rules.targets import TargetsOutOfReach
from lightning_hooks.records.facts import StepFacts
from tests.health.rules.made import diagnosed, found, of_rms, reason, run, structure_of

MODEL = structure_of({"encoder": "Linear", "head": "Linear"})
COUNT = 64


def regressing(residual, output=1.0, squared=1.0, ranks=1, largest=3.0, **options):
    """A run whose head misses its targets by `residual`, with a loss that is `squared` times the mean squared error."""
    slope = 2 * residual / COUNT
    tensors = {
        ("output", "encoder"): of_rms(1.0, count=COUNT),
        ("output", "head"): of_rms(output, count=COUNT * ranks),
        ("output_grad", "head"): of_rms(slope, count=COUNT * ranks, low=-largest * slope, high=slope),
    }
    return run(MODEL, tensors, **{"loss": lambda step: squared * residual**2, **options})


def test_targets_that_the_output_never_comes_near_are_told_with_their_size():
    (finding,) = diagnosed(TargetsOutOfReach(), regressing(1e6)).findings
    assert (finding.rows, finding.severity, finding.first_step) == (("head",), "warning", 40)
    assert finding.message == "head: the loss is the mean squared error of this output, which misses its targets by 1e+06."


@pytest.mark.parametrize(
    "views",
    [
        regressing(29.0),
        regressing(1e6, squared=0.5),
        regressing(1e6, output=4e4),
        regressing(9.0, output=1e-6),
        regressing(1e6, steps=45),
        regressing(1e6, loss=lambda step: np.inf),
    ],
    ids=["in reach", "another loss", "an output as large", "targets of a usual scale", "a short time", "not finite"],
)
def test_targets_in_reach_and_other_losses_are_no_finding(views):
    assert found(TargetsOutOfReach(), views) == {}


def absolute(residual, output=1.0, scale=1.0, loss=None, **options):
    """A run whose loss is a multiple of the mean absolute error: all gradients of its head have one size."""
    options = {"largest": 1.0, "loss": loss or (lambda step: scale * residual), **options}
    return regressing(scale / 2, output=output, **options)


@pytest.mark.parametrize("scale", [1.0, 16.0, 0.05])
def test_targets_that_a_mean_absolute_error_shows_are_told(scale):
    (finding,) = diagnosed(TargetsOutOfReach(), absolute(347.0, scale=scale)).findings
    huber = diagnosed(TargetsOutOfReach(), absolute(347.0, scale=scale, largest=1.04)).findings
    assert [each.message for each in huber] == [finding.message]
    assert (finding.rows, finding.severity, finding.first_step) == (("head",), "warning", 40)
    assert finding.message == (
        "head: all gradients of this output have one size, as those of a mean absolute error have; then it misses its targets "
        "by 347."
    )


@pytest.mark.parametrize(
    "views",
    [
        absolute(29.0),
        absolute(347.0, output=12.0),
        absolute(347.0, largest=1.1),
        absolute(347.0, loss=lambda step: 347.0 if step < 30 else 270.0),
    ],
    ids=["in reach", "an output as large", "another loss", "a loss that has fallen"],
)
def test_losses_that_are_no_absolute_error_of_far_targets_are_no_finding(views):
    assert found(TargetsOutOfReach(), views) == {}


def test_a_fifth_of_a_long_fit_is_not_judged():
    facts = StepFacts(last_step=399)
    assert found(TargetsOutOfReach(), regressing(1e6, steps=89, facts=facts)) == {}
    assert found(TargetsOutOfReach(), regressing(1e6, steps=120, facts=facts)) == {"head": 80}


def test_each_rank_has_a_mean_of_its_own():
    views = [replace(view, ranks=2) for view in regressing(1e6, ranks=2)]
    assert found(TargetsOutOfReach(), views) == {"head": 40}


def test_it_says_what_it_lacks():
    assert reason(TargetsOutOfReach(), regressing(1.0, loss=None)) == "no row has `loss`"
    assert reason(TargetsOutOfReach(), run(MODEL, {("output", "head"): of_rms(1.0)})) == "no row has `output_grad`"
