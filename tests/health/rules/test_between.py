"""A rule on what moves a parameter between two steps: no tensor changes its size by more than the size of the change."""

import pytest

from lightning_hooks.health.rules.between import MovesBetweenSteps
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from tests.health.rules.made import diagnosed, falling, found, of_rms, reason, run, sparse, warned, weights_of

NAMES = ("a.weight", "b.weight", "ema.weight")
MODEL = weights_of(*NAMES)


def sizes_of(sizes, update=0.001, steps=60, name="a.weight", **options):
    """A run of weights of this size at each step, of which each update changes a share."""
    tensors = {("param", each): of_rms(1.0) for each in NAMES} | {("param", name): lambda step: of_rms(sizes(step))}
    tensors |= {("update", each): lambda step: of_rms(update * sizes(step)) for each in NAMES}
    return run(MODEL, tensors, steps, **options)


def test_a_size_that_jumps_further_than_updates_reach_is_a_note_until_the_loss_shows_harm():
    jumps = lambda step: 1.0 if step < 40 else 0.9  # noqa: E731
    (finding,) = diagnosed(MovesBetweenSteps(), sizes_of(jumps, loss=falling)).findings
    assert (finding.rows, finding.first_step, finding.severity) == (("a.weight",), 40, "info")
    assert finding.message == (
        "a.weight: its root mean square is 10 % away from where the step before left it, which is no update of that step."
    )
    assert warned(MovesBetweenSteps(), sizes_of(jumps, loss=lambda step: falling(step) if step < 40 else 9.0)) == {
        "a.weight": 40
    }


def test_moves_that_leave_hardly_anything_of_a_weight_are_a_fact():
    views = sizes_of(lambda step: 0.95**step, loss=falling)
    (finding,) = diagnosed(MovesBetweenSteps(), views).findings
    assert (finding.rows, finding.first_step, finding.severity) == (("a.weight",), 1, "warning")
    assert finding.message == (
        "a.weight: its root mean square is 5 % away from where the step before left it, which is no update of that step; "
        "after several such moves 4.8 % of its largest size is left."
    )


@pytest.mark.parametrize(
    "sizes",
    [lambda step: 0.01 if step else 1.0, lambda step: 0.01 + 0.99 * (step < 2) - 0.5 * (step == 1), lambda step: 0.97**step],
    ids=["clipped once", "in two moves", "to a sixth"],
)
def test_a_weight_that_is_kept_within_a_limit_or_shrinks_less_is_a_note(sizes):
    assert warned(MovesBetweenSteps(), sizes_of(sizes, loss=falling)) == {}


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        (lambda step: 1.0 + 0.0009 * step, {}),
        (lambda step: 1.0 if step < 40 else 0.9, {"update": 0.03}),
        (lambda step: 1.0 if step < 40 else 0.9, {"name": "ema.weight"}),
        (lambda step: 1.0 + 1e-5 * (step % 2), {"update": 1e-9}),
        (lambda step: 1.0 + 0.01 * step, {"update": 0.0}),
        (lambda step: max(0.0, step - 9.0), {"update": 1.0}),
    ],
    ids=["steady", "large updates", "a copy", "rounding", "moved by other code alone", "from zero"],
)
def test_a_size_within_the_reach_of_updates_is_no_finding(sizes, options):
    assert found(MovesBetweenSteps(), sizes_of(sizes, **options)) == {}


def test_only_successive_steps_are_compared():
    assert found(MovesBetweenSteps(), sparse(sizes_of(lambda step: 1.0 + 0.01 * step), 5)) == {}
    assert found(MovesBetweenSteps(), sizes_of(lambda step: 1.0 + 0.01 * step)) == {"a.weight": 1}


def test_the_rule_says_what_it_lacks():
    views = run(MODEL, {("param", "a.weight"): of_rms(1.0)})
    assert reason(MovesBetweenSteps(), views) == "no row has `update`"
    lbfgs = StepFacts((OptimizerFacts("LBFGS", (GroupFacts(1.0, 0.0, NAMES),)),))
    views = sizes_of(lambda step: 1.0 + 0.01 * step, facts=lbfgs)
    assert reason(MovesBetweenSteps(), views) == "LBFGS moves weights within a step"
