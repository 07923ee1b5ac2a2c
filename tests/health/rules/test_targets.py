"""The rule on targets knows a mean squared error by its gradient, and how far the output is from what it should be."""

from dataclasses import replace

import numpy as np
import pytest

from lightning_hooks.health.rules.targets import TargetsOutOfReach
from tests.health.rules.made import diagnosed, found, of_rms, reason, run, structure_of

MODEL = structure_of({"encoder": "Linear", "head": "Linear"})
COUNT = 64


def regressing(residual, output=1.0, squared=1.0, ranks=1, **options):
    """A run whose head misses its targets by `residual`, with a loss that is `squared` times the mean squared error."""
    slope = 2 * residual / COUNT
    tensors = {
        ("output", "encoder"): of_rms(1.0, count=COUNT),
        ("output", "head"): of_rms(output, count=COUNT * ranks),
        ("output_grad", "head"): of_rms(slope, count=COUNT * ranks),
    }
    return run(MODEL, tensors, **{"loss": lambda step: squared * residual**2, **options})


def test_targets_that_the_output_never_comes_near_are_told_with_their_size():
    (finding,) = diagnosed(TargetsOutOfReach(), regressing(1e6)).findings
    assert (finding.rows, finding.severity, finding.first_step) == (("head",), "warning", 40)
    assert finding.message == "head: the loss is the mean squared error of this output, which misses its targets by 1e+06."


@pytest.mark.parametrize(
    "views",
    [
        regressing(900.0),
        regressing(1e6, squared=0.5),
        regressing(1e6, output=1e4),
        regressing(9.0, output=1e-6),
        regressing(1e6, steps=45),
        regressing(1e6, loss=lambda step: np.inf),
    ],
    ids=["in reach", "another loss", "an output as large", "targets of a usual scale", "a short time", "not finite"],
)
def test_targets_in_reach_and_other_losses_are_no_finding(views):
    assert found(TargetsOutOfReach(), views) == {}


def test_each_rank_has_a_mean_of_its_own():
    views = [replace(view, ranks=2) for view in regressing(1e6, ranks=2)]
    assert found(TargetsOutOfReach(), views) == {"head": 40}


def test_it_says_what_it_lacks():
    assert reason(TargetsOutOfReach(), regressing(1.0, loss=None)) == "no row has `loss`"
    assert reason(TargetsOutOfReach(), run(MODEL, {("output", "head"): of_rms(1.0)})) == "no row has `output_grad`"
