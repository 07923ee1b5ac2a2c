"""SlowLearning tells a fit that ends while its loss, with almost unmoved weights, falls as fast as at first."""

import numpy as np
import pytest

from lightning_hooks.health.rules.pace import SlowLearning
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from tests.health.rules.made import diagnosed, found, of_rms, reason, run, structure_of, without_structure

MODEL = structure_of({"a": "Linear", "head": "Linear"}, {"head": (10, 64)})
NOISE = np.random.default_rng(0).standard_normal(400)


def falls_evenly(step):
    return 3.0 - 0.004 * step + 0.002 * NOISE[step]


def levels_off(step):
    return 2.0 + np.exp(-step / 8) + 0.002 * NOISE[step]


def fit(ratio=1e-3, steps=100, last_step=99, loss=falls_evenly, facts=None, tensors=None, size=1.0):
    """A fit each of whose steps changes the weights by this share of themselves."""
    rows = {("param", "a.weight"): of_rms(size), ("param", "head.weight"): of_rms(1.0)}
    rows |= {("update", "a.weight"): of_rms(ratio), ("update", "head.weight"): of_rms(min(ratio, 1e-3))}
    rows |= {("output", "head"): of_rms(0.1), ("output_grad", "head"): of_rms(1e-3)}
    return run(MODEL, rows | (tensors or {}), steps, loss=loss, facts=facts or StepFacts(last_step=last_step))


def test_a_fit_that_ends_while_its_loss_falls_as_fast_as_at_first_is_told():
    (finding,) = diagnosed(SlowLearning(), fit()).findings
    assert (finding.rule, finding.severity, finding.first_step) == ("SlowLearning", "warning", 0)
    assert finding.message.startswith(
        "In 100 steps no weight has moved by more than 10 % of itself in all, and the loss, which went from 2.9"
    )
    assert "of its first pace" in finding.message


@pytest.mark.parametrize(
    "options",
    [
        {"ratio": 2.5e-3},
        {"ratio": 0.0},
        {"loss": levels_off, "ratio": 1.5e-3},
        {"loss": lambda step: 3.0 * np.exp(-step / 40), "ratio": 1e-4},
        {"loss": lambda step: 3.0 - 0.02 * step},
        {"loss": lambda step: 3.0 + 0.2 * NOISE[step], "ratio": 1.5e-3},
        {"loss": lambda step: -1.0 - 0.004 * step},
        {"steps": 80},
        {"steps": 40, "last_step": 39},
    ],
    ids=[
        "weights move",
        "none moves",
        "it learned",
        "half is lost",
        "little is left",
        "it does not fall",
        "below zero",
        "no end",
        "short",
    ],
)
def test_other_fits_are_not_slow(options):
    assert found(SlowLearning(), fit(**options)) == {}


def test_weights_that_have_hardly_moved_are_told_whatever_the_noise_of_the_loss_hides():
    (finding,) = diagnosed(SlowLearning(), fit(ratio=4e-4, loss=lambda step: 3.0 + 0.2 * NOISE[step])).findings
    assert finding.message.startswith(
        "In 100 steps no weight has moved by more than 4 % of itself in all, and the loss went from"
    )
    assert found(SlowLearning(), fit(ratio=6e-4, loss=levels_off)) == {}


@pytest.mark.parametrize(("pace", "told"), [(0.5, {}), (0.7, {"": 0})])
def test_the_loss_must_fall_at_most_of_its_first_pace(pace, told):
    def loss(step):
        return 3.0 - 0.004 * min(step, 52) - pace * 0.004 * max(step - 52, 0) + 1e-4 * NOISE[step]

    assert found(SlowLearning(), fit(loss=loss)) == told


def test_the_way_of_weights_counts_all_steps_though_the_window_holds_the_last_ones():
    def loss(step):
        return 3.0 - 0.001 * step + 0.0005 * NOISE[step]

    assert found(SlowLearning(), fit(steps=400, last_step=399, ratio=4e-4, loss=loss)) == {"": 0}
    assert found(SlowLearning(), fit(steps=400, last_step=399, ratio=6e-4, loss=loss)) == {}


def test_a_model_that_goes_on_from_trained_weights_is_not_slow():
    # Of 32 samples in 10 classes, most are right with a probability of 0.9.
    logits = {
        ("output", "head"): of_rms(3.0, count=320),
        ("output_grad", "head"): of_rms(0.13 / 32, count=320),
    }
    assert found(SlowLearning(), fit(tensors=logits, loss=lambda step: falls_evenly(step) / 6)) == {}
    assert found(SlowLearning(), fit(tensors=logits)) == {"": 0}


def test_slow_learning_says_what_it_lacks():
    assert reason(SlowLearning(), without_structure(fit())) == "the structure of the model is not known"
    assert reason(SlowLearning(), fit(facts=StepFacts())) == "nobody knows how long the fit is"
    two = tuple(OptimizerFacts("Adam", (GroupFacts(1e-3, 0.0, (name,)),)) for name in ("a.weight", "head.weight"))
    assert reason(SlowLearning(), fit(facts=StepFacts(two, last_step=99))) == (
        "several optimizers train with losses that may balance"
    )
