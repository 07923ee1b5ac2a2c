"""Rules on updates: they name the weight, are silent below their thresholds, and wait for the loss."""

import pytest

from lightning_hooks.health.rule import Severity
from lightning_hooks.health.rules.updates import ClippingAlways, UpdateTooLarge, UpdateTooSmall, WeightGrowth, WeightShrinkage
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from tests.health.rules.made import (
    diagnosed,
    falling,
    found,
    of_rms,
    reason,
    run,
    sparse,
    structure_of,
    warned,
    without_structure,
)

MODEL = structure_of({"a": "Linear", "b": "Linear", "c": "Linear"})


def updates(ratios, start=1.0, **options):
    """A run in which each weight, of size `start`, changes by a ratio of its size at each step."""
    tensors = {}
    for name, ratio in ratios.items():
        size = start.get(name, 1.0) if isinstance(start, dict) else start
        tensors["param", name] = of_rms(size)
        tensors["update", name] = (lambda step, r=ratio: of_rms(r(step))) if callable(ratio) else of_rms(ratio)
    return run(options.pop("structure", MODEL), tensors, **options)


def test_a_large_update_is_told_with_the_step_since_which_it_is_large():
    views = updates({"a.weight": lambda step: 0.2 if step >= 60 else 0.01, "b.weight": 0.01})
    assert found(UpdateTooLarge(), views) == {"a.weight": 60}
    (finding,) = diagnosed(UpdateTooLarge(), views).findings
    assert finding.message == "a.weight: one update is 20 % of the weight (at step 0: 1 %)."


@pytest.mark.parametrize(
    ("ratio", "options"),
    [
        (0.099, {}),
        (0.2, {"loss": falling}),
        (lambda step: 0.2 if 60 <= step < 69 else 0.01, {}),  # shorter than the patience
        (lambda step: 0.2 if step < 20 else 0.01, {}),  # while the rate warms up
    ],
)
def test_ordinary_large_updates_are_no_finding(ratio, options):
    assert found(UpdateTooLarge(), updates({"a.weight": ratio, "b.weight": 0.01}, **options)) == {}


def test_a_weight_that_starts_at_zero_may_change_by_any_share():
    views = updates({"a.weight": 0.5, "b.weight": 0.01, "c.weight": 0.01}, start={"a.weight": 1e-6})
    assert found(UpdateTooLarge(), views) == {}


def test_a_bias_may_change_by_any_share():
    assert found(UpdateTooLarge(), updates({"a.bias": 0.5, "b.weight": 0.01})) == {}


def test_a_small_update_is_told_from_the_start_on():
    views = updates({"a.weight": 1e-5, "b.weight": 2e-5})
    assert found(UpdateTooSmall(), views) == {"a.weight": 0, "b.weight": 0}


@pytest.mark.parametrize(
    ("ratio", "options"),
    [
        (1.5e-4, {}),
        (1e-5, {"loss": falling}),
        (0.0, {}),  # that is a fact of its own
        (lambda step: 1e-3 if step < 40 else 1e-5, {"steps": 200}),  # annealed
    ],
)
def test_ordinary_small_updates_are_no_warning(ratio, options):
    assert warned(UpdateTooSmall(), updates({"a.weight": ratio, "b.weight": 1.5e-4}, **options)) == {}


NAMES = [f"{name}.weight" for name in "abc"]


def of_sgd(decay, names=NAMES):
    return StepFacts((OptimizerFacts("SGD", (GroupFacts(0.1, decay, tuple(names)),)),))


def test_steps_that_are_nothing_but_weight_decay_are_told_however_large_it_is():
    shares = {"a.weight": 2e-3, "b.weight": 2.02e-3, "c.weight": 1.98e-3}
    views = updates(shares, facts=of_sgd(0.01))
    assert warned(UpdateTooSmall(), views) == dict.fromkeys(NAMES, 0)
    (finding,) = diagnosed(UpdateTooSmall(), views).findings
    assert (
        "one update is 0.2 % of the weight, as of most weights, and nothing but weight decay takes one share" in finding.message
    )


@pytest.mark.parametrize(
    ("shares", "facts", "options"),
    [
        ([2e-3, 2e-3, 2e-3], of_sgd(0.0), {}),
        ([2e-3, 2e-3, 2e-3], of_sgd(1e-4), {}),
        ([2e-3, 2e-3, 2e-3], of_sgd(0.01, NAMES[:2]), {}),
        ([2e-3, 3e-3, 2e-3], of_sgd(0.01), {}),
        ([2e-3, 2e-3, 2e-3], of_sgd(0.01), {"loss": falling}),
        ([lambda step: 2e-3 if step > 40 else 1e-2 * (1 + step % 3), 2e-3, 2e-3], of_sgd(0.01), {}),
    ],
    ids=["no decay", "a small one", "of two weights", "other steps", "it learns", "later"],
)
def test_steps_that_are_equal_for_another_reason_are_no_decay(shares, facts, options):
    assert warned(UpdateTooSmall(), updates(dict(zip(NAMES, shares, strict=True)), facts=facts, **options)) == {}


def test_a_weight_that_stands_still_alone_is_told_while_the_loss_falls():
    assert found(UpdateTooSmall(), updates({"a.weight": 1e-7, "b.weight": 1e-3}, loss=falling)) == {"a.weight": 20}
    assert found(UpdateTooSmall(), updates({"a.weight": 2e-6, "b.weight": 1e-2}, loss=falling)) == {}
    assert warned(UpdateTooSmall(), updates({"a.weight": 1e-7, "b.weight": 1e-3}, loss=falling)) == {}


def weights(**sizes):
    return {("param", f"{name}.weight"): size if callable(size) else of_rms(size) for name, size in sizes.items()}


def test_a_weight_that_grows_alone_is_told():
    views = run(MODEL, weights(a=lambda step: of_rms(1.0 + step / 2), b=1.0, c=1.0))
    assert found(WeightGrowth(), views) == {"a.weight": 29}


def test_growth_of_all_weights_and_of_one_that_starts_at_zero_is_no_finding():
    grows = {name: lambda step: of_rms(1.0 + step / 2) for name in "abc"}
    assert found(WeightGrowth(), run(MODEL, weights(**grows))) == {}
    assert found(WeightGrowth(), run(MODEL, weights(a=lambda step: of_rms(1e-3 + step / 10), b=1.0, c=1.0))) == {}
    assert found(WeightGrowth(), run(MODEL, weights(a=lambda step: of_rms(min(1.0 + step, 14.9)), b=1.0, c=1.0))) == {}


def test_weights_that_fall_to_a_tenth_within_a_hundred_steps_are_a_note():
    shrinking = weights(a=lambda step: of_rms(0.97**step), b=lambda step: of_rms(0.98**step), c=1.0)
    (finding,) = diagnosed(WeightShrinkage(), run(MODEL, shrinking, loss=falling)).findings
    assert (finding.rows, finding.first_step, finding.severity) == (("a.weight",), 76, "info")
    assert finding.message == "a.weight: within 100 steps the weight has fallen to 4.9 % of its size."
    assert found(WeightShrinkage(), run(MODEL, shrinking)) == {"a.weight": 76}
    assert warned(WeightShrinkage(), run(MODEL, shrinking)) == {}
    assert found(WeightShrinkage(), run(MODEL, {**shrinking, **weights(b=1.0)})) == {}


@pytest.mark.parametrize(
    "size",
    [lambda step: 0.98**step, lambda step: 1e-5 * 0.9**step, lambda step: 1.0 if step < 60 else 0.11],
    ids=["a slower fall", "a start at about zero", "less of a fall"],
)
def test_ordinary_falls_of_a_weight_are_no_finding(size):
    assert found(WeightShrinkage(), run(MODEL, weights(a=lambda step: of_rms(size(step)), b=1.0), steps=200)) == {}


def clipped(factor, steps=100):
    tensors = {("grad", "a.weight"): of_rms(3.0), ("grad", "b.weight"): of_rms(4.0)}
    for name, size in (("a.weight", 3.0), ("b.weight", 4.0)):
        tensors["final_grad", name] = lambda step, size=size: of_rms(size * factor(step))
    return run(MODEL, tensors, steps)


def test_clipping_at_every_step_is_a_note_that_says_what_is_left():
    (finding,) = diagnosed(ClippingAlways(), clipped(lambda step: 0.001)).findings
    assert (finding.severity, finding.rows, finding.is_over) == (Severity.INFO, ("",), None)
    assert finding.message == "Clipping cut the gradient at 100 % of the last 50 steps, to 0.1 % of its norm."
    assert finding.first_step == 10  # of the 50 steps at the look at step 59


def test_clipping_is_not_over_if_the_last_step_of_a_run_has_no_final_gradient():
    views = sparse(clipped(lambda step: 0.5, steps=98), 5)
    (finding,) = diagnosed(ClippingAlways(), views).findings
    assert (finding.last_step, finding.is_over) == (95, None)


def test_clipping_now_and_then_is_no_finding():
    assert found(ClippingAlways(), clipped(lambda step: 0.5 if step % 8 else 1.0)) == {}
    assert found(ClippingAlways(), clipped(lambda step: 0.5, steps=49)) == {}


def test_rules_on_updates_say_what_they_lack():
    views = updates({"a.weight": 1e-5})
    assert reason(UpdateTooSmall(), without_structure(views)) == "the structure of the model is not known"
    assert reason(UpdateTooLarge(), updates({"a.weight": 0.5}, loss=None)) == "no row has `loss`"
    assert reason(UpdateTooLarge(), run(MODEL, weights(a=1.0))) == "no row has `update`"
    assert reason(ClippingAlways(), run(MODEL, {("grad", "a.weight"): of_rms(1.0)})) == "no row has `final_grad`"
