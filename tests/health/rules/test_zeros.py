"""Facts of numbers: no gradient at all, an input of zeros; they hold for ten updates, whatever the loss does."""

import numpy as np
import pytest

from lightning_hooks.health.rules.zeros import GradientsConsumed, ZeroGradients, ZeroInput
from lightning_hooks.plan.row_index import RequestedRows, RowIndex
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from lightning_hooks.rules.schedule import EveryN
from tests.health.rules.made import Made, diagnosed, falling, found, of_rms, reason, run, structure_of
from tests.health.views import view_of

NAMES = ("a.weight", "b.weight")
ZERO = Made(std=0.0, low=0.0, high=0.0, zeros=1.0)
FACTS = StepFacts((OptimizerFacts("SGD", (GroupFacts(0.1, 0.0, NAMES),)),))
MODEL = structure_of({"a": "Linear", "b": "Linear"})


def trained(grads, loss=lambda step: 3.0, steps=40):
    """A run in which both parameters have the same gradient at each step."""
    updates = ZERO if grads is None else of_rms(1.0)
    return run(
        MODEL, {(t, name): each for name in NAMES for t, each in (("grad", grads), ("update", updates))}, steps, loss, FACTS
    )


def since(step, value=ZERO):
    return lambda now: value if now >= step else of_rms(1.0)


def test_gradients_of_exactly_zero_are_told_after_ten_updates():
    (finding,) = diagnosed(ZeroGradients(), trained(since(20))).findings
    assert finding.first_step == 20 and finding.message == "All gradients are exactly 0 at 20 updates in a row."
    assert found(ZeroGradients(), trained(since(31))) == {}


def test_a_loss_of_exactly_zero_from_the_start_is_a_fault_and_one_that_was_reached_is_not():
    (finding,) = diagnosed(ZeroGradients(), trained(ZERO, lambda step: 0.0)).findings
    assert finding.message.startswith("The loss and all gradients are exactly 0 at ") and finding.tensor == "loss"
    assert found(ZeroGradients(), trained(since(20), lambda step: max(0.0, 2 - step / 10))) == {}


def at_times(loss, zero):
    """A run in which loss and gradients are 0 at some steps."""
    return trained(lambda step: ZERO if zero(step) else of_rms(1.0), lambda step: 0.0 if zero(step) else loss(step), 60)


def test_a_loss_of_exactly_zero_between_large_ones_has_nothing_to_learn_from():
    (finding,) = diagnosed(ZeroGradients(), at_times(lambda step: 2.0, lambda step: step % 4 == 3)).findings
    assert finding.tensor == "loss"
    assert finding.message == "The loss and all gradients are exactly 0 at 13 updates, between losses of about 2."


@pytest.mark.parametrize(
    ("loss", "zero"),
    [
        (lambda step: 2.0 if step < 10 else 0.4, lambda step: step > 12 and step % 3 == 0),
        (lambda step: 2.0, lambda step: step % 8 == 7),
        (lambda step: 2.0, lambda step: 20 < step < 26 or step == 59),
    ],
    ids=["margins that most samples have", "few", "some in a row"],
)
def test_a_loss_that_is_zero_at_some_steps_may_be_learned(loss, zero):
    assert found(ZeroGradients(), at_times(loss, zero)) == {}


@pytest.mark.parametrize(
    ("grads", "count"),
    [
        (None, 40),
        (lambda step: None if step % 2 else of_rms(1.0), 20),
        (lambda step: None if step % 5 == 4 else of_rms(1.0), 0),
    ],
    ids=["always", "at every second one", "at eight"],
)
def test_updates_at_which_no_parameter_has_a_gradient_are_counted(grads, count):
    findings = diagnosed(ZeroGradients(), trained(grads)).findings
    assert [each.message for each in findings] == [f"No parameter has a gradient at {count} of the last 40 updates."][
        : count > 0
    ]


@pytest.mark.parametrize(
    ("changes", "update", "is_consumed"),
    [(True, ZERO, True), (False, of_rms(0.1), True), (False, ZERO, False)],
    ids=["within backward", "by an optimizer that kept it", "not at all"],
)
def test_a_gradient_that_is_consumed_within_backward_is_not_missing(changes, update, is_consumed):
    size = (lambda step: of_rms(1 + 1e-4 * step)) if changes else of_rms(1.0)
    tensors = {("grad", "a.weight"): None, ("update", "a.weight"): update, ("param", "a.weight"): size}
    views = run(MODEL, tensors, 40, facts=FACTS)
    assert found(ZeroGradients(), views) == ({} if is_consumed else {"": 0})
    findings = diagnosed(GradientsConsumed(), views).findings
    text = "it has no gradient when the optimizer steps, and changes all the same: its gradient is consumed within backward"
    assert [(each.severity, each.first_step, each.message) for each in findings] == [("info", 0, f"a.weight: {text}.")][
        : int(is_consumed)
    ]
    assert found(GradientsConsumed(), views[:9]) == {}


@pytest.mark.parametrize("had", [0, 8], ids=["at first", "later"])
def test_a_parameter_that_had_a_gradient_consumes_none_within_backward(had):
    grads = lambda step: of_rms(1.0) if step == had else None  # noqa: E731
    tensors = {
        ("grad", "a.weight"): grads,
        ("update", "a.weight"): ZERO,
        ("param", "a.weight"): lambda step: of_rms(1.0 + step),
    }
    assert found(GradientsConsumed(), run(MODEL, tensors, 40, facts=FACTS)) == {}


@pytest.mark.parametrize(
    ("every", "final", "update", "count"),
    [(1, None, ZERO, 40), (2, None, ZERO, 20), (1, of_rms(1.0), ZERO, 0), (1, None, of_rms(0.1), 0), (5, None, ZERO, 0)],
    ids=["at each", "at every second one", "an optimizer that waits", "an optimizer that kept them", "at eight"],
)
def test_gradients_that_are_gone_between_their_arrival_and_the_step_are_told(every, final, update, count):
    def planted(value):
        return lambda step: value if step % every == every - 1 else of_rms(1.0)

    tensors = {("grad", "a.weight"): of_rms(1.0), ("update", "a.weight"): planted(update)}
    views = run(MODEL, {**tensors, ("final_grad", "a.weight"): planted(final)}, 40, facts=FACTS)
    findings = diagnosed(ZeroGradients(), views).findings
    text = f"Gradients are gone when the optimizer steps, and nothing changes, at {count} of 40 updates."
    assert [(each.first_step, each.message) for each in findings] == [(every - 1, text)][: count > 0]


def test_a_rate_of_zero_changes_nothing_either():
    still = StepFacts((OptimizerFacts("SGD", (GroupFacts(0.0, 0.0, NAMES),)),))
    tensors = {("grad", "a.weight"): of_rms(1.0), ("update", "a.weight"): ZERO, ("final_grad", "a.weight"): None}
    assert found(ZeroGradients(), run(MODEL, tensors, 40, facts=still)) == {}


def test_a_moving_average_that_the_optimizer_holds_consumes_no_gradient():
    moves = {("grad", "a.weight"): None, ("update", "a.weight"): ZERO, ("param", "a.weight"): lambda step: of_rms(1.0 + step)}
    reached = {("output_grad", "a"): None, ("output_grad", "b"): of_rms(1.0)}
    assert found(GradientsConsumed(), run(MODEL, {**moves, **reached}, 40, facts=FACTS)) == {}


def test_updates_between_those_at_which_gradients_are_watched_say_nothing():
    every, rarely = EveryN(1), EveryN(10)
    rows = [("grad", "a.weight"), ("update", "a.weight")]
    tensors, names = zip(*rows, strict=True)
    requests = [
        RequestedRows(tensor, ((schedule, ("norm",)),), np.array([row]))
        for row, (tensor, schedule) in enumerate([("grad", rarely), ("update", every)])
    ]
    index, views = RowIndex(names, tensors, requested_rows=requests), []
    for step in range(60):
        is_due = step % 10 == 9
        values = [1.0 if is_due and step < 20 else np.nan, 1.0]
        due = frozenset({every, rarely} if is_due else {every})
        views.append(view_of(step, index, values, due=due, facts=FACTS, structure=MODEL))
    assert found(ZeroGradients(), views[:20]) == {}
    assert found(ZeroGradients(least=4), views) == {"": 29}


@pytest.mark.parametrize("one", [of_rms(1e-9), Made(low=-1e-9, high=1e-9)])
def test_one_gradient_that_is_not_zero_is_enough(one):
    views = run(
        MODEL, {("grad", "a.weight"): ZERO, ("grad", "b.weight"): of_rms(1e-9), ("update", "a.weight"): ZERO}, facts=FACTS
    )
    assert found(ZeroGradients(), views) == {}


def entering(inputs, loss=lambda step: 3.0, steps=60):
    return run(MODEL, {("input", "b"): inputs, ("output", "a"): of_rms(1.0)}, steps, loss)


def rarely(value):
    return lambda step: value if step % 10 == 0 else None


def test_an_input_that_is_zero_since_the_first_step_is_told_with_what_the_loss_does():
    (finding,) = diagnosed(ZeroInput(), entering(rarely(ZERO))).findings
    assert (finding.rows, finding.first_step) == (("b",), 0)
    assert finding.message == "b: every element of its input has been 0 since the first step."
    (finding,) = diagnosed(ZeroInput(), entering(since(0), falling)).findings
    assert finding.message.startswith("b: every element of its input has been 0 since the first step")


@pytest.mark.parametrize(
    "inputs",
    [since(5), lambda step: ZERO if step < 8 else of_rms(1.0), lambda step: ZERO if step % 3 else of_rms(1.0)],
    ids=["later", "for eight updates", "now and then"],
)
def test_an_input_that_is_zero_for_a_while_is_no_finding(inputs):
    assert found(ZeroInput(), entering(inputs)) == {}


@pytest.mark.parametrize(("steps", "is_told"), [(34, False), (50, True)])
def test_steps_without_a_learning_rate_do_not_count_for_an_input_of_zeros(steps, is_told):
    updates = {("update", "a.weight"): lambda step: of_rms(1.0) if step >= 25 else ZERO}
    tensors = {("input", "b"): ZERO, ("output", "a"): of_rms(1.0)} | updates
    assert bool(found(ZeroInput(), run(MODEL, tensors, steps))) is is_told


def test_an_input_that_was_another_one_before_the_window_has_not_been_zero_since_the_first_step():
    assert found(ZeroInput(), entering(lambda step: of_rms(1.0) if 0 < step < 100 else ZERO, steps=400)) == {}


def test_a_rule_says_what_it_lacks():
    assert reason(ZeroGradients(), run(MODEL, {("param", "a.weight"): of_rms(1.0)})) == "it is not known how the steps train"
    assert reason(ZeroInput(), run(MODEL, {("output", "a"): of_rms(1.0)})) == "no row has `input`"
