"""The rules on the loss name the step of a fault, and are silent on losses of healthy trainings."""

from dataclasses import replace

import numpy as np
import pytest

from lightning_hooks.health.rules.loss import (
    RULES,
    LossConstant,
    LossDiverged,
    LossSpike,
    LossUnbounded,
)
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from tests.health.rules.made import diagnosed, noisy, of_rms, reason, run, run_of_series
from tests.health.rules.made import found as found_in

ROWS = [("loss", "loss")]


def found(rule, losses, **options):
    return diagnosed(rule, run_of_series(ROWS, np.asarray(losses)[:, None], **options)).findings


def with_jump(size, at=100, steps=150):
    losses = noisy(1.0, steps)
    losses[at] = size
    return losses


def test_a_spike_is_found_at_its_step():
    (finding,) = found(LossSpike(), with_jump(4.0))
    assert finding.rule == "LossSpike" and finding.first_step == 100
    assert "jumps to 4 at step 100" in finding.message


@pytest.mark.parametrize(
    "losses",
    [
        with_jump(1.3),
        with_jump(40.0, at=50),
        np.concatenate([noisy(1.0, 100), noisy(4.0, 50)]),
        1.0 + np.random.default_rng(0).standard_t(2.5, 400) * 0.3,
        np.concatenate([noisy(2.3, 30), 1e-5 * np.ones(100), [1e-3], 1e-5 * np.ones(20)]),
    ],
    ids=["not far enough", "too early", "harder data", "heavy tails", "a ripple near zero"],
)
def test_usual_jumps_are_no_spikes(losses):
    assert not found(LossSpike(), losses)


def test_a_loss_far_above_its_start_has_diverged_since_it_rose():
    (finding,) = found(LossDiverged(), np.concatenate([noisy(1.0, 40), noisy(9.0, 60)]))
    assert finding.first_step == 40 and finding.severity == "critical"


@pytest.mark.parametrize("level", [3.0, 1.0])
def test_a_loss_near_its_start_has_not_diverged(level):
    assert not found(LossDiverged(), np.concatenate([noisy(1.0, 40), noisy(level, 60)]))


def test_a_loss_that_never_moves_is_constant_and_one_that_falls_is_not():
    (finding,) = found(LossConstant(), noisy(2.3, 120, share=0.005))
    assert finding.first_step == 0
    assert not found(LossConstant(), np.linspace(2.3, 1.9, 120))


def test_a_loss_that_falls_without_end_below_zero_has_no_bound():
    (finding,) = found(LossUnbounded(), -np.geomspace(1.0, 1e5, 100))
    assert finding.rule == "LossUnbounded" and "still falls" in finding.message and finding.severity == "warning"
    assert not found(LossDiverged(), -np.geomspace(1.0, 1e5, 100))


def test_a_small_negative_loss_has_a_bound():
    assert not found(LossUnbounded(), -np.geomspace(1.0, 900.0, 100))
    assert not found(LossUnbounded(), -np.geomspace(1e-4, 900.0, 100))


@pytest.mark.parametrize(
    "losses",
    [
        np.concatenate([noisy(1.0, 40), noisy(9.0, 9), noisy(1.0, 51)]),
        np.concatenate([noisy(1.0, 40), 1e-6 * noisy(1.0, 40), 1e-3 * noisy(1.0, 40)]),
    ],
    ids=["nine steps", "far above its minimum"],
)
def test_a_loss_that_has_a_bound_or_comes_back_has_not_diverged(losses):
    assert not found(LossDiverged(), losses)


def with_rate(rate):
    """A run whose loss stands, with a learning rate for each step."""

    def facts(step):
        return StepFacts((OptimizerFacts("SGD", (GroupFacts(rate(step), 0.0, ("a",)),)),))

    return [replace(view, facts=facts(view.step)) for view in run(None, {}, steps=120, loss=lambda step: 2.3)]


def test_a_loss_may_stand_while_the_rate_rises():
    assert not found_in(LossConstant(), with_rate(lambda step: 1e-6 * step))
    assert found_in(LossConstant(), with_rate(lambda step: 0.1))


@pytest.mark.parametrize(
    "losses",
    [
        np.linspace(2.3, 2.25, 120),
        np.linspace(2.3034, 2.2983, 60),
        np.zeros(120),
        noisy(2.3, 120, share=0.3),
        noisy(2.3, 45, share=0.005),
    ],
    ids=["falls by 2 %", "falls a little and steadily", "zero", "noise", "too short"],
)
def test_a_loss_that_moves_or_has_nothing_to_learn_is_not_constant(losses):
    assert not found(LossConstant(), losses)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_says_that_nobody_measures_the_loss(rule):
    assert reason(rule, run(None, {("grad", "a"): of_rms(1.0)}, loss=None)) == "no row has `loss`"


def test_losses_of_several_optimizers_may_balance():
    views = run(None, {}, facts=StepFacts((OptimizerFacts("Adam", ()), OptimizerFacts("Adam", ()))))
    assert reason(LossConstant(), views) == "several optimizers train with losses that may balance"
