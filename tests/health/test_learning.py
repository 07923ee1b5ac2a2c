"""A training has learned if its loss falls after the first steps, whatever the bias of its head has learned in these."""

import json

import numpy as np
import pytest
import torch

from lightning_hooks.health.chance import is_at_chance, late_losses
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.learning import course_of, has_learned
from lightning_hooks.records.step_view import StepView
from lightning_hooks.stats.kernels import measure_many
from tests.health.views import index_of, views_of

SEED = np.random.default_rng(0)


def evidence_of(losses, every=1, **options):
    evidence = Evidence(**options)
    add(evidence, losses, every)
    return evidence


def add(evidence, losses, every=1, first=0):
    for view in views_of([("loss", "loss")], np.asarray(losses)[:, None])[first:]:
        if view.step < 25 or view.step % every == every - 1:
            evidence.add(view)


def noisy(level, share=0.02):
    return level * (1 + share * SEED.standard_normal(len(level)))


def of_bias(steps):
    """A head that learns the frequencies in twenty steps, and then nothing."""
    return 2.0 + 0.3 * np.exp(-np.arange(steps) / 5)


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("steps", [100, 1500])
def test_a_bias_that_learns_frequencies_is_no_learning(steps, every):
    assert has_learned(evidence_of(noisy(of_bias(steps)), every)) is False
    assert has_learned(evidence_of(noisy(np.geomspace(2.3, 1.5, steps)), every)) is True
    assert has_learned(evidence_of(noisy(np.geomspace(2.3, 2.9, steps)), every)) is False


def test_a_small_fall_counts_only_above_the_noise():
    slow = np.linspace(2.3, 2.28, 400)
    assert has_learned(evidence_of(slow)) and not has_learned(evidence_of(noisy(slow, 0.2)))


def test_noise_alone_hardly_ever_looks_like_learning():
    said = [has_learned(evidence_of(noisy(np.full(100, 2.3)))) for _ in range(200)]
    assert said.count(True) <= 4


@pytest.mark.parametrize("losses", [np.linspace(2, 1, 59), np.full(100, np.nan)])
def test_short_runs_and_runs_without_losses_are_not_judged(losses):
    assert has_learned(evidence_of(losses)) is None


@pytest.mark.parametrize(("end", "more"), [(2.0, ""), (np.nan, ", and is not finite at the end")])
def test_the_course_of_a_loss_says_that_it_ends_with_nan(end, more):
    evidence = Evidence([("loss", "nonfinite")])
    for step, loss in enumerate([2.0] * 80 + [end]):
        moments = measure_many([torch.tensor([loss])]).numpy()
        evidence.add(StepView(step, rows=index_of([("loss", "loss")]), moments=moments))
    assert course_of(evidence).text == f"the loss went from 2 to 2{more}"


@pytest.mark.parametrize("count", [0, 1])
def test_losses_whose_noise_is_not_known_are_not_at_chance(count):
    assert not is_at_chance(np.full(count, 2.3), np.log(10))


def test_a_loss_that_ends_at_infinity_has_not_learned():
    assert has_learned(evidence_of(np.concatenate([np.linspace(2, 1, 70), [np.inf] * 5]))) is False


def test_the_early_losses_outlive_the_window_and_a_resume():
    losses = noisy(np.geomspace(2.3, 1.0, 300))
    whole, first, second = evidence_of(losses, size=64), evidence_of(losses[:90], size=64), Evidence(size=64)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    add(second, losses, first=90)
    assert len(second.early_losses()) == 21 and has_learned(second) is True
    assert second.early_losses().tolist() == whole.early_losses().tolist()
    assert late_losses(second).tolist() == losses[-30:].tolist()


def test_steps_that_training_went_back_from_are_no_early_losses():
    evidence = evidence_of(np.full(50, 2.0))
    add(evidence, np.full(45, 1.0), first=30)
    assert evidence.early_losses().tolist() == [2.0] * 10 + [1.0] * 11
