"""The rules on the loss name the step of a fault, and are silent on losses of healthy trainings."""

import numpy as np
import pytest

from lightning_hooks.health.rules.loss import RULES, LossConstant, LossDiverged, LossSpike
from tests.health.rules.evidence_for_tests import diagnosed, noisy

ROWS = [("loss", "loss")]


def found(rule, losses, **options):
    return diagnosed(rule, ROWS, np.asarray(losses)[:, None], **options).findings


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
        with_jump(4.0, at=50),
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


def test_two_rules_that_fire_on_healthy_trainings_are_off():
    assert [rule.name for rule in RULES if not rule.is_on] == ["LossNotDecreasing", "LossOscillating"]
