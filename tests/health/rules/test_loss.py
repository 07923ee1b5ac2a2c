"""The rules on the loss name the step of a fault, and are silent on losses of healthy trainings."""

from dataclasses import replace

import numpy as np
import pytest

from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.rules.activations import ConstantOutput
from lightning_hooks.health.rules.first_loss import InitialLoss
from lightning_hooks.health.rules.gradients import ExplodingGradient
from lightning_hooks.health.rules.loss import (
    RULES,
    LossConstant,
    LossDiverged,
    LossSpike,
    LossUnbounded,
)
from lightning_hooks.health.rules.targets import TargetsOutOfReach
from lightning_hooks.health.rules.updates import UpdateTooLarge
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from tests.health.rules.made import diagnosed, noisy, of_rms, reason, run, run_of_series, structure_of
from tests.health.rules.made import found as found_in

ROWS = [("loss", "loss")]
NEEDED = TargetsOutOfReach(), InitialLoss(), ConstantOutput()


def diagnosed_by(rules, views):
    """The diagnosis of a run by several rules."""
    diagnosis = Diagnosis(rules)
    for view in views:
        diagnosis.add(view)
    diagnosis.finish()
    return diagnosis


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


def classifying(loss, classes=10, gradient=1.0, steps=220, **options):
    """A run whose head has equal probabilities for its classes at first, by its gradient, with a loss of each step."""
    samples = 32
    slope = gradient * np.sqrt(classes - 1) / classes / samples
    tensors = {
        ("output", "head"): of_rms(0.1, count=samples * classes),
        ("output_grad", "head"): of_rms(slope, count=samples * classes),
    }
    model = structure_of({"head": "Linear"}, {"head": (classes, 64)})
    return run(model, tensors, steps=steps, loss=loss, **options)


def said_of(rule, views):
    """What a rule says beside others that let the head's output be measured."""
    return [each for each in diagnosed_by([rule, *NEEDED], views).findings if each.rule == rule.name]


def series(level, share=0.02, seed=1):
    noise = np.random.default_rng(seed).standard_normal(1000)
    return lambda step: float(level(step) * (1 + share * noise[step]))


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_a_loss_at_chance_is_told_although_the_bias_has_learned_the_frequencies(classes):
    chance = np.log(classes)
    views = classifying(series(lambda step: chance * (1 + 0.08 * np.exp(-step / 5))), classes)
    (finding,) = said_of(LossConstant(), views)
    assert finding.is_over is None and finding.first_step == 0
    assert f"that of {classes} equal probabilities is {chance:.4g}; outputs do not depend on inputs" in finding.message


@pytest.mark.parametrize(("times", "share"), [(1.2, 0.02), (1.05, 0.002)])
def test_a_loss_above_chance_is_not_called_that_of_outputs_that_ignore_inputs(times, share):
    (finding,) = said_of(LossConstant(), classifying(series(lambda step: times * np.log(10), share)))
    assert finding.message.startswith("The loss is above chance: it is 2.")
    assert finding.message.endswith("2.303; the model is worse than one that knows nothing.")


def test_a_loss_at_chance_says_by_how_much_its_noise_lets_it_differ():
    (finding,) = said_of(LossConstant(), classifying(series(lambda step: np.log(10), 0.1)))
    assert "give or take 0." in finding.message and "is at chance" in finding.message


@pytest.mark.parametrize(
    "views",
    [
        classifying(series(lambda step: np.log(10) * (1.05 if step < 90 else 0.9))),
        classifying(series(lambda step: np.log(10) * max(0.5, 1.05 - step / 100))),
        classifying(series(lambda step: np.log(10)), facts=StepFacts(last_step=2000)),
    ],
    ids=["a plateau", "falls", "a long fit"],
)
def test_a_loss_that_leaves_chance_or_has_time_to_is_not_constant(views):
    assert not said_of(LossConstant(), views)


def heads(loss, kind, gain, steps=260, slope=0.4):
    """A run of 32 samples with a loss of each step, from the gradient of the head and the differences of its outputs.

    Args:
        loss: a function of the step.
        kind: `squares`, or `yes or no`.
        gain: what the differences of the outputs between samples are worth, as a share of the loss; or a function of the step.
        steps: how many.
        slope: the gradient of a logit of yes or no after the first steps, times the number of samples.
    """
    losses = np.array([loss(step) for step in range(steps)])
    gain = np.array([gain(step) for step in range(steps)]) if callable(gain) else gain
    slopes = 2 * np.sqrt(losses) / 32 if kind == "squares" else np.where(np.arange(steps) < 5, 0.5, slope) / 32
    variances = gain * losses if kind == "squares" else gain * losses * 2 / slope**2
    variations = np.sqrt(variances) / 10

    def output(step):
        return of_rms(10.0, count=32, units={"unit_variation": variations[step]})

    tensors = {("output", "head"): output, ("output_grad", "head"): lambda step: of_rms(slopes[step], count=32)}
    return run(structure_of({"head": "Linear"}, {"head": (1, 64)}), tensors, steps, loss=lambda step: losses[step])


FALLS = {
    "squares": series(lambda step: 1.2 + 3 * np.exp(-step / 5), 0.1),
    "yes or no": series(lambda step: 0.5 + 0.19 * np.exp(-step / 5), 0.01),
}


@pytest.mark.parametrize("kind", FALLS)
def test_a_loss_that_outputs_which_hardly_vary_have_is_at_chance_once_it_stands(kind):
    (finding,) = said_of(LossConstant(), heads(FALLS[kind], kind, gain=0.005))
    assert finding.is_over is None and finding.first_step == 0
    assert "that of an output that is the same for every sample is " in finding.message
    assert not said_of(LossConstant(), heads(FALLS[kind], kind, gain=0.04))


@pytest.mark.parametrize(
    ("begin", "end", "told"), [(0.75, 0.6931, True), (0.75, 0.685, False), (0.75, 0.701, False), (1.2, 0.6931, False)]
)
def test_a_loss_that_stands_at_that_of_one_half_is_at_chance_without_a_last_layer(begin, end, told):
    loss = end + np.where(np.arange(260) < 5, begin - end, 0.0) + 0.002 * np.random.default_rng(0).normal(size=260)
    findings = found(LossConstant(), loss)
    assert any("that of probabilities of one half is 0.6931" in each.message for each in findings) is told


def test_a_cross_entropy_that_is_nearly_zero_is_learned_and_not_at_chance():
    learned = heads(lambda step: 0.69 if step < 5 else 1e-5 * FALLS["yes or no"](step), "yes or no", gain=0.001)
    assert not said_of(LossConstant(), learned)


def test_logits_that_differ_by_far_are_not_at_chance_though_little_of_their_gradient_is_left():
    smoothed = heads(FALLS["yes or no"], "yes or no", gain=0.005)
    assert said_of(LossConstant(), smoothed)
    assert not said_of(LossConstant(), heads(FALLS["yes or no"], "yes or no", gain=0.005, slope=0.02))


def test_a_slow_start_has_outputs_that_hardly_vary_for_most_of_a_fit():
    views = heads(FALLS["squares"], "squares", gain=0.005, steps=200)
    assert not said_of(LossConstant(), views)
    assert not said_of(LossConstant(), [replace(view, facts=StepFacts(last_step=300)) for view in views])
    assert said_of(LossConstant(), [replace(view, facts=StepFacts(last_step=210)) for view in views])


def test_a_loss_that_has_only_just_left_chance_is_not_there():
    # The differences of the outputs are the median of many steps, and say nothing of the last ones.
    views = heads(lambda step: FALLS["squares"](step) - 0.5 * (step >= 270), "squares", gain=0.005, steps=280)
    (finding,) = said_of(LossConstant(), views)
    assert finding.is_over == 279


@pytest.mark.parametrize("kind", FALLS)
def test_a_model_whose_outputs_begin_to_differ_learns_before_its_loss_falls(kind):
    assert not said_of(LossConstant(), heads(FALLS[kind], kind, gain=lambda step: 1e-4 * np.exp(step / 50)))


def test_a_loss_that_falls_with_the_mean_of_the_targets_alone_has_not_settled():
    assert not said_of(LossConstant(), heads(series(lambda step: 9 * np.exp(-step / 200), 0.05), "squares", gain=0.001))


def test_a_loss_that_comes_back_to_chance_is_dated_to_the_return():
    views = classifying(series(lambda step: np.log(10) * (max(0.3, 1.02 - step / 60) if step < 150 else 1.0)), steps=300)
    (finding,) = said_of(LossConstant(), views)
    assert finding.first_step == 150 and finding.is_over is None
    late = classifying(series(lambda step: np.log(10) * (max(0.3, 1.02 - step / 60) if step < 150 else 1.0)), steps=450)
    assert [each.first_step for each in said_of(LossConstant(), late)] == [150]


def test_a_loss_that_stands_still_stays_a_finding_when_the_window_moves_on():
    (finding,) = found(LossConstant(), noisy(2.3, 600, share=0.005))
    assert finding.is_over is None


def test_a_loss_that_fell_within_the_first_steps_has_moved_also_when_the_window_has_lost_them():
    """As that of an LBFGS, which takes many steps in one."""
    fell = np.concatenate([[40.0, 12.0, 5.0], noisy(1.5, 597, share=0.005)])
    assert not found(LossConstant(), fell)


@pytest.mark.parametrize("loss", [lambda step: -2.31, lambda step: -2.31 - step / 100])
def test_a_cross_entropy_with_a_minus_sign_is_told_at_once(loss):
    (finding,) = said_of(LossUnbounded(), classifying(loss, steps=20))
    assert "the sign of the loss is flipped" in finding.message.lower() and "cannot be below 0" in finding.message
    assert not said_of(LossUnbounded(), classifying(loss, gradient=1.5, steps=20))


@pytest.mark.parametrize("seed", range(6))
def test_the_lucky_first_loss_of_a_tiny_batch_is_no_start(seed):
    errors = np.random.default_rng(seed).standard_normal(120) ** 2
    errors[0] = 1e-4
    assert not found(LossDiverged(), errors) and not found(LossDiverged(), np.tile(errors, 4))


def test_a_loss_that_grows_from_its_first_step_on_has_diverged():
    (finding,) = found(LossDiverged(), 10 * 1.5 ** np.arange(40))
    assert finding.first_step < 12 and finding.severity == "critical"


@pytest.mark.parametrize(
    "end",
    [np.full(30, np.inf), np.full(30, np.nan), np.full(400, np.nan), np.tile([1.0], 30)],
    ids=["infinite", "NaN", "NaN for more steps than rules can read", "back"],
)
def test_a_loss_that_is_not_finite_any_more_has_not_come_back(end):
    (finding,) = found(LossDiverged(), np.concatenate([10 * 1.5 ** np.arange(40), end]))
    assert (finding.is_over is None) != bool(np.isfinite(end[0]))


def test_a_divergence_of_steps_that_exceed_the_weights_is_told_within_ten_steps():
    tensors = {("param", "a.weight"): of_rms(1.0), ("update", "a.weight"): of_rms(1.7)}
    views = run(structure_of({"a": "Linear"}), tensors, steps=10, loss=lambda step: 10 * 3.0**step)
    assert [each.rule for each in diagnosed_by([LossDiverged(), UpdateTooLarge()], views).findings] == ["LossDiverged"]
    slow = {**tensors, ("update", "a.weight"): of_rms(0.7)}
    assert not found_in(LossDiverged(), run(structure_of({"a": "Linear"}), slow, steps=10, loss=lambda step: 10 * 3.0**step))


def test_a_loss_that_one_step_has_thrown_far_up_has_diverged_however_it_varies_there():
    losses = 3.8 + 1e3 * np.abs(np.random.default_rng(0).standard_normal(60)) + 100
    losses[0] = 3.8
    thrown = {("param", "a.weight"): of_rms(1.0), ("update", "a.weight"): lambda step: of_rms(100.0 if step == 0 else 0.1)}
    views = run(structure_of({"a": "Linear"}), thrown, steps=60, loss=lambda step: float(losses[step]))
    (finding,) = diagnosed_by([LossDiverged(), UpdateTooLarge()], views).findings
    assert finding.first_step <= 2 and "it began at 3.8" in finding.message
    # The steps that have thrown the loss up leave the window, and the loss stays there.
    views = run(structure_of({"a": "Linear"}), thrown, steps=300, loss=lambda step: float(losses[step % 59 + 1 if step else 0]))
    (finding,) = diagnosed_by([LossDiverged(), UpdateTooLarge()], views).findings
    assert finding.is_over is None


def test_a_spike_of_a_large_and_quiet_loss_must_be_a_share_of_it():
    losses = 3.37e4 * (1 + 1e-5 * np.random.default_rng(0).standard_normal(200))
    losses[:10], losses[180] = 10.0, 3.381e4
    assert not found(LossSpike(), losses)
    losses[180] = 9e4
    (finding,) = found(LossSpike(), losses)
    assert f"had not been above {losses[100:180].max():.4g}" in finding.message


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


def with_rate(rate, last_step=None):
    """A run of 120 steps whose loss stands, with a learning rate for each step."""

    def facts(step):
        return StepFacts((OptimizerFacts("SGD", (GroupFacts(rate(step), 0.0, ("a",)),)),), last_step=last_step)

    return [replace(view, facts=facts(view.step)) for view in run(None, {}, steps=120, loss=lambda step: 2.3)]


def test_a_loss_may_stand_while_the_rate_rises():
    assert not found_in(LossConstant(), with_rate(lambda step: 1e-6 * step))
    assert found_in(LossConstant(), with_rate(lambda step: 0.1))


def test_a_rate_that_rises_to_the_end_of_the_fit_is_no_warm_up():
    assert not found_in(LossConstant(), with_rate(lambda step: 1e-6 * step, last_step=200))
    assert found_in(LossConstant(), with_rate(lambda step: 1e-6 * step, last_step=125))


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


def regressing(factor, errors, slope=lambda step: 1.0):
    """A run of a loss that is a multiple of the mean squared error of 32 outputs, by a multiple of its gradient."""
    count = 32

    def gradient(step):
        return of_rms(slope(step) * 2 * abs(factor) / count * errors(step) ** 0.5, count=count)

    tensors = {("output", "head"): of_rms(0.1, count=count), ("output_grad", "head"): gradient}
    model = structure_of({"head": "Linear"}, {"head": (1, 64)})
    return run(model, tensors, 40, loss=lambda step: factor * errors(step))


def rising(step):
    return 2.0 + step / 10


def test_a_mean_squared_error_with_a_minus_sign_is_told_by_its_gradient():
    (finding,) = said_of(LossUnbounded(), regressing(-1.0, rising))
    assert (finding.first_step, finding.severity) == (0, "warning")
    assert finding.message == (
        "The sign of the loss is flipped: by its gradient it is -1 times a mean squared error at each step, and went from -2 "
        "to -3.9."
    )
    (halved,) = said_of(LossUnbounded(), regressing(-0.5, rising))
    assert "it is -0.5 times a mean squared error" in halved.message


@pytest.mark.parametrize(
    "views",
    [
        regressing(1.0, rising),
        regressing(-1.0, lambda step: 2.0 + step / 1000),
        regressing(-1.0, rising, slope=lambda step: 1 + step % 2 / 20),
    ],
    ids=["no minus sign", "it hardly varies", "another gradient"],
)
def test_other_losses_are_no_negated_squared_error(views):
    assert not said_of(LossUnbounded(), views)


def turned(sizes, slopes=None, peak=1.0, begin=-0.5):
    """A run with a loss below 0 of 32 outputs of these sizes, each with a gradient of one size."""
    slopes = np.ones(len(sizes)) if slopes is None else slopes
    tensors = {
        ("output", "head"): lambda step: of_rms(sizes[step], count=32),
        ("output_grad", "head"): lambda step: of_rms(slopes[step] / 32, count=32, low=-peak * slopes[step] / 32, high=0.0),
    }
    model = structure_of({"head": "Linear"}, {"head": (1, 64)})
    return run(model, tensors, len(sizes), loss=lambda step: min(begin, -0.9 * sizes[step] * slopes[step]))


def test_a_loss_that_falls_in_proportion_to_the_outputs_has_no_end():
    (finding,) = said_of(LossUnbounded(), turned(np.linspace(0.5, 12.0, 60)))
    assert finding.severity == "warning"
    assert finding.message.startswith("The loss has been below 0 since the first step, and its size has grown from 0.5 to ")
    assert finding.message.endswith("in proportion to the outputs: it has no lower end, as a loss with the wrong sign.")


@pytest.mark.parametrize(
    "views",
    [
        turned(np.linspace(0.5, 2.0, 60)),
        turned(np.linspace(0.5, 12.0, 60), 1 + np.arange(60) % 2 / 20),
        turned(np.linspace(0.5, 12.0, 60), begin=-30.0),
        turned(np.full(60, 8.0)),
    ],
    ids=["not far", "gradients of other sizes", "another loss", "outputs of one size"],
)
def test_other_losses_below_zero_are_not_in_proportion_to_the_outputs(views):
    assert not said_of(LossUnbounded(), views)


def contrasting(loss, rows=64, steps=200, accumulate=1):
    """A run whose loss compares the samples of a batch of two views, of whose codes the head gives so many rows."""
    tensors = {("output", "head"): of_rms(1.0, count=16 * rows * accumulate), ("output_grad", "head"): of_rms(1e-3)}
    model, facts = structure_of({"head": "Linear"}, {"head": (16, 64)}), StepFacts(last_step=steps, accumulate=accumulate)
    return run(model, tensors, steps, loss=loss, facts=facts)


@pytest.mark.parametrize(("level", "where"), [(0.999, "at chance: it is 3.46"), (0.98, "still near chance: it is 3.39")])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_contrastive_loss_whose_scores_stay_alike_is_told_near_the_end(level, where, accumulate):
    loss = lambda step: np.log(32) * (level + 1e-5 * (200 - step))  # noqa: E731
    (finding,) = said_of(LossConstant(), contrasting(loss, accumulate=accumulate))
    assert finding.first_step == 0 and finding.message.startswith(f"The loss is {where}")
    assert "that of 32 equal scores of a batch is 3.466; all scores of a batch are nearly alike" in finding.message


@pytest.mark.parametrize(
    "views",
    [
        contrasting(lambda step: np.log(32) * (0.96 + 0.04 * np.exp(-step / 9))),
        contrasting(lambda step: np.log(32) * (1.0 + 0.2 * np.exp(-step / 9) - step / 1e5)),
        contrasting(lambda step: np.log(50) - step / 1e4),
        contrasting(lambda step: np.log(4) - step / 1e4, rows=8),
    ],
    ids=["it has left it", "it began elsewhere", "of no batch", "of few samples"],
)
def test_other_losses_that_fall_little_are_not_those_of_equal_scores(views):
    assert not [each for each in said_of(LossConstant(), views) if "scores" in each.message]


def lowered(losses, norms, **options):
    """What is said of a loss with these norms of the whole gradient."""
    views = run_of_series(ROWS, np.asarray(losses)[:, None], {"run/grad_norm": np.asarray(norms)}, **options)
    return [
        each for each in diagnosed_by([LossUnbounded(), ExplodingGradient()], views).findings if each.rule == "LossUnbounded"
    ]


def test_a_loss_below_zero_from_the_first_step_on_that_falls_ever_faster_has_no_bound():
    (finding,) = lowered(-np.geomspace(1.0, 400.0, 60), np.geomspace(1.0, 20.0, 60))
    assert finding.severity == "warning"
    assert finding.message.startswith(
        "The loss has been below 0 since the first step, its size has grown from 1.501 to 160.4, "
    )
    assert "it falls the faster the further it goes" in finding.message
    assert lowered(-np.geomspace(0.01, 90.0, 60), np.geomspace(1.0, 20.0, 60))


@pytest.mark.parametrize(
    ("losses", "norms", "options"),
    [
        (-np.geomspace(1.0, 400.0, 60), np.geomspace(1.0, 9.0, 60), {}),
        (-np.geomspace(0.01, 18.0, 60), np.geomspace(1.0, 20.0, 60), {}),
        (np.append(1.0, -np.geomspace(1.0, 400.0, 59)), np.geomspace(1.0, 20.0, 60), {}),
        (
            -np.geomspace(1.0, 400.0, 60),
            np.geomspace(1.0, 20.0, 60),
            {"facts": StepFacts(tuple(OptimizerFacts("Adam", (GroupFacts(0.1, 0.0, (name,)),)) for name in "ab"))},
        ),
    ],
    ids=["no steeper", "a density", "from above zero", "an actor and a critic"],
)
def test_other_losses_below_zero_may_grow(losses, norms, options):
    assert not lowered(losses, norms, **options)
