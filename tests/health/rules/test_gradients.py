"""The rules on gradients name the weight and the step of a fault, and are silent on gradients of healthy trainings."""

import numpy as np
import pytest

from lightning_hooks.health.rules.gradients import RULES, ExplodingGradient, GradientSpike, GradientsRepeat, VanishingGradient
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.facts import StepFacts
from lightning_hooks.records.step_view import StepView
from lightning_hooks.stats.accumulators.base import AccumulatorRows
from lightning_hooks.stats.accumulators.pairs import Pairs
from tests.health.rules.made import diagnosed, noisy, run_of_series, weights_of
from tests.health.views import moments_of

ROWS = [("grad", "a"), ("grad", "b")]
TAG = "run/grad_norm"


def found(rule, a, b, *, whole=None, structure=None, **options):
    """The findings for two weights; the whole gradient is that of both."""
    series = np.stack([a, b], axis=1)
    whole = np.linalg.norm(series, axis=1) if whole is None else whole
    views = run_of_series(ROWS, series, {TAG: whole}, structure=structure or weights_of("a", "b"), **options)
    return diagnosed(rule, views).findings


def with_jump(size, at=100, steps=150):
    norms = noisy(1.0, steps)
    norms[at] = size
    return norms


def test_a_spike_is_found_at_its_weight_and_step():
    (finding,) = found(GradientSpike(), noisy(1.0, 150, seed=1), with_jump(8.0))
    assert finding.rows == ("b",) and finding.first_step == 100 and "at step 100" in finding.message


def test_a_spike_within_the_first_64_steps_must_be_larger():
    (finding,) = found(GradientSpike(), noisy(1.0, 150, seed=1), with_jump(30.0, at=50))
    assert finding.rows == ("b",) and finding.first_step == 50


@pytest.mark.parametrize(
    ("norms", "structure"),
    [
        (with_jump(5.0), None),
        (with_jump(8.0, at=50), None),
        (with_jump(30.0, at=31), None),
        (np.concatenate([noisy(1.0, 100), noisy(8.0, 50)]), None),
        (np.concatenate([noisy(1.0, 40), 1e-3 * with_jump(8.0)]), None),
        (with_jump(8.0), weights_of("a", "b", biases=["b"])),
        (np.exp(np.random.default_rng(0).normal(size=400)), None),
    ],
    ids=["just below", "not far enough so early", "too early", "stays", "below the early level", "a bias", "heavy tails"],
)
def test_usual_jumps_are_no_spikes(norms, structure):
    assert not found(GradientSpike(), noisy(1.0, len(norms), seed=1), norms, structure=structure)


def test_a_gradient_that_stays_a_large_multiple_explodes():
    (finding,) = found(ExplodingGradient(), noisy(1.0, 150), np.concatenate([noisy(1.0, 80), noisy(100.0, 70)]))
    assert finding.rows == ("b",) and finding.first_step == 80 and finding.harm == ""


def test_a_gradient_does_not_explode_alone_nor_for_a_moment_nor_by_less():
    grown = np.concatenate([noisy(1.0, 80), noisy(100.0, 70)])
    assert not found(ExplodingGradient(), noisy(1.0, 150), grown, whole=noisy(100.0, 150))
    assert not found(ExplodingGradient(), noisy(1.0, 150), np.concatenate([grown[:89], noisy(1.0, 61)]))
    assert not found(ExplodingGradient(), noisy(1.0, 150), np.concatenate([noisy(1.0, 80), noisy(40.0, 70)]))


def test_a_gradient_may_grow_while_the_loss_falls():
    grown = np.concatenate([noisy(1.0, 80), noisy(100.0, 70)])
    for losses, count in ((np.linspace(2.0, 1.0, 150), 0), (np.ones(150), 1)):
        rows = [("grad", "a"), ("loss", "loss")]
        views = run_of_series(rows, np.stack([grown, losses], axis=1), {TAG: grown}, structure=weights_of("a"))
        assert len(diagnosed(ExplodingGradient(), views).findings) == count


@pytest.mark.parametrize(
    ("then", "count"), [(0.8, 0), (1.2, 0), (1.9, 1), (np.inf, 1)], ids=["turns", "a third back", "most back", "infinite"]
)
def test_a_network_that_has_left_a_plateau_and_learned_does_not_explode(then, count):
    """Its gradients stay large in comparison with those of the plateau, also while its loss does not fall."""
    grown = np.concatenate([noisy(1.0, 60), noisy(1000.0, 190)])
    losses = np.concatenate([noisy(2.0, 60, share=1e-3), np.linspace(2.0, 0.6, 90), np.full(100, then)])
    rows = [("grad", "a"), ("loss", "loss")]
    views = run_of_series(rows, np.stack([grown, losses], axis=1), {TAG: grown}, structure=weights_of("a"))
    assert len(diagnosed(ExplodingGradient(), views).findings) == count


def test_a_gradient_vanishes_from_the_start():
    (finding,) = found(VanishingGradient(), noisy(9e-6, 80), noisy(0.1, 80, share=0.0))
    assert finding.rows == ("a",) and finding.first_step == 0 and "of the largest weight's" in finding.message


@pytest.mark.parametrize(
    ("small", "options"),
    [
        (noisy(2e-5, 80), {}),
        (noisy(9e-6, 39), {}),
        (np.zeros(80), {}),
        (np.concatenate([[0.0], noisy(9e-6, 79)]), {}),
        (np.geomspace(1e-8, 9e-6, 80), {}),
        (noisy(9e-6, 80), {"structure": weights_of("a", "b", biases=["a"])}),
        (noisy(9e-6, 80), {"structure": weights_of("a", "b", embeddings=["a"])}),
        (noisy(9e-6, 80), {"facts": StepFacts(frozen=("a",))}),
    ],
    ids=["just above", "too short", "unused", "starts at zero", "grows", "a bias", "an embedding", "frozen"],
)
def test_gradients_that_are_small_for_a_reason_do_not_vanish(small, options):
    assert not found(VanishingGradient(), small, np.full(len(small), 0.1), **options)


def sums(steps, seed=0):
    """The norms of a sum of gradients that have a common direction."""
    return np.linalg.norm(np.cumsum(np.random.default_rng(seed).normal(0.3, 0.3, (steps, 50)), axis=0), axis=1)


@pytest.mark.parametrize("seed", range(5))
def test_gradients_that_are_never_cleared_repeat_from_the_first_step_on(seed):
    (finding,) = found(GradientsRepeat(), noisy(1.0, 60), noisy(1.0, 60), whole=sums(60, seed))
    assert finding.rule == "GradientsRepeat" and finding.first_step == 0 and "has grown evenly to" in finding.message


def test_repetition_lasts_until_the_norm_falls_however_long_the_run_is():
    whole = sums(400)
    (finding,) = found(GradientsRepeat(), noisy(1.0, 400), noisy(1.0, 400), whole=whole)
    assert finding.is_over is None and finding.last_step == 399
    whole[[300, 301]] = np.inf, np.nan
    (finding,) = found(GradientsRepeat(), noisy(1.0, 400), noisy(1.0, 400), whole=whole)
    assert finding.is_over is None
    whole[330:] = 3.0
    (finding,) = found(GradientsRepeat(), noisy(1.0, 400), noisy(1.0, 400), whole=whole)
    assert finding.is_over == 330


def test_a_sum_is_looked_for_from_the_first_step_on_only():
    whole = np.concatenate([noisy(1.0, 20), sums(380)])
    assert not found(GradientsRepeat(), noisy(1.0, 400), noisy(1.0, 400), whole=whole)


def test_gradients_that_agree_little_repeat_too():
    # The first gradient of a training is mostly noise, so that their sum grows by less of it in each step.
    (finding,) = found(GradientsRepeat(), noisy(1.0, 60), noisy(1.0, 60), whole=1.0 + 0.38 * np.arange(60))
    assert finding.first_step == 0 and finding.evidence[0].threshold == pytest.approx(0.35 * 13)


@pytest.mark.parametrize(
    "whole",
    [
        noisy(1.0, 60, share=0.5),
        1.0 + 0.3 * np.arange(60),
        np.geomspace(1.0, 100.0, 60),
        np.minimum(sums(60), sums(60)[10]),
        np.linspace(1.0, 0.1, 60),
    ],
    ids=["noise", "grows slowly", "explodes", "stops early", "falls"],
)
def test_gradients_that_are_cleared_do_not_repeat(whole):
    assert not found(GradientsRepeat(), noisy(1.0, 60), noisy(1.0, 60), whole=whole)


def compared(cosines, whole):
    """The findings where each gradient is compared with the one before; NaN where it is not compared."""
    pairs = Pairs()
    rows = AccumulatorRows(pairs, (0,))
    index = RowIndex(["a"], ["grad"], kept=[rows])
    views = []
    for step, (cosine, norm) in enumerate(zip(cosines, whole, strict=True)):
        sums = np.zeros((1, len(pairs.columns)))
        sums[0, :3] = (cosine, 1.0, 1.0) if not np.isnan(cosine) else (0.0, 0.0, 0.0)
        summaries = {TAG: float(norm)}
        views.append(StepView(step, rows=index, moments=moments_of(1.0)[None], kept={"pairs": sums}, summaries=summaries))
    return diagnosed(GradientsRepeat(), views).findings


def test_sums_of_gradients_that_do_not_align_are_no_repetition():
    whole = sums(60)
    assert compared(np.full(60, 0.9), whole) and not compared(np.full(60, 0.7), whole)


def test_between_two_comparisons_the_last_one_counts():
    whole, rarely = sums(60), np.full(60, np.nan)
    rarely[::10] = 0.9
    assert compared(rarely, whole)
    rarely[10::10] = 0.7
    assert not compared(rarely, whole)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (GradientSpike(), "nobody knows which parameters are weights"),
        (GradientsRepeat(), "no step reports `run/grad_norm`"),
    ],
    ids=["structure", "norm"],
)
def test_a_rule_says_why_it_cannot_run(rule, reason):
    diagnosis = diagnosed(rule, run_of_series(ROWS, np.ones((60, 2))))
    assert diagnosis.summary()["could_not_run"][rule.name] == reason


def test_a_missing_statistic_is_named():
    diagnosis = diagnosed(ExplodingGradient(), run_of_series(ROWS, np.ones((60, 2)), structure=weights_of("a", "b")))
    assert diagnosis.summary()["could_not_run"]["ExplodingGradient"] == "no step reports `run/grad_norm`"


def test_rules_can_be_typed_back_in():
    for rule in RULES:
        assert eval(repr(rule)) == rule
