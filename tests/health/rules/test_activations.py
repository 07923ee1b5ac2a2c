"""Rules on activations: what is dead, saturated or constant, and the healthy training that looks alike."""

import numpy as np
import pytest

from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.rules.activations import ConstantOutput, MassiveActivation, SaturatedActivation
from lightning_hooks.health.rules.dead import DeadLayer, DeadUnits
from lightning_hooks.health.rules.modes import DropoutTooHigh
from lightning_hooks.records.facts import StepFacts
from tests.health.rules.made import (
    Made,
    diagnosed,
    falling,
    found,
    of_rms,
    reason,
    run,
    structure_of,
    warned,
    without_structure,
)

NETWORK = structure_of({"net.0": "Linear", "net.1": "ReLU", "net.2": "Linear", "net.3": "ReLU", "head": "Linear"})
ZEROS = Made(std=0.0, zeros=1.0, low=0.0, high=0.0)


def network(**outputs):
    """The tensors of the network, of which some outputs are given by the name of the module with an underscore."""
    tensors = {("output", module.name): Made() for module in NETWORK.modules}
    tensors |= {("input", name): Made() for name in ("net.0", "net.2", "head")}
    tensors |= {("param", f"{name}.weight"): of_rms(0.07) for name in ("net.0", "net.2", "head")}
    tensors |= {("param", f"{name}.bias"): of_rms(0.07) for name in ("net.0", "net.2", "head")}
    return tensors | {("output", name.replace("_", ".")): made for name, made in outputs.items()}


def later(made, step, before=None):
    """A tensor that changes at a step."""
    return lambda now: made if now >= step else before or Made()


def units(every=10, **numbers):
    """A tensor whose units are measured at every tenth step; a number may be a function of the step."""
    options = {name: numbers.pop(name) for name in ("zeros", "count", "std") if name in numbers}

    def at(step):
        measured = {name: each(step) if callable(each) else each for name, each in numbers.items()}
        return Made(units={"unit_variation": 0.7, **measured} if step % every == every - 1 else {}, **options)

    return at


def test_a_layer_that_dies_is_critical_and_named_since_the_step_at_which_it_died():
    tensors = network(net_1=later(ZEROS, 60)) | {("input", "net.2"): later(ZEROS, 60)}
    (finding,) = diagnosed(DeadLayer(), run(NETWORK, tensors)).findings
    assert (finding.rows, finding.first_step, finding.severity) == (("net.1", "net.2"), 60, Severity.CRITICAL)
    assert finding.message == "net.1, then 1 more: every element of the output is 0."


def test_a_layer_that_is_dead_from_the_start_is_told_as_soon_as_the_loss_is_known_not_to_fall():
    assert found(DeadLayer(), run(NETWORK, network(net_1=ZEROS), 50)) == {"net.1": 0}


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (ZEROS, {"loss": falling}),
        (lambda step: ZEROS if 60 <= step < 69 else Made(), {}),
        (Made(zeros=0.999), {}),
    ],
)
def test_a_layer_that_is_not_dead_for_good_or_off_the_main_path_is_no_finding(made, options):
    assert found(DeadLayer(), run(NETWORK, network(net_1=made), **options)) == {}


def test_an_input_that_is_measured_at_every_tenth_step_is_told_after_twenty():
    inputs = lambda step: (ZEROS if step >= 60 else Made()) if step % 10 == 9 else None  # noqa: E731
    tensors = network() | {("input", "net.2"): inputs}
    assert found(DeadLayer(), run(NETWORK, tensors, 90)) == {"net.2": 69}
    assert found(DeadLayer(), run(NETWORK, tensors, 79)) == {}


SMOOTH = structure_of({"net.0": "Linear", "net.1": "SiLU", "net.2": "Linear", "net.3": "Tanh", "head": "Linear"})


def smooth(name, share, **options):
    """What is said of a run in which a module gives this share of an input that is measured at every tenth step."""
    tensors = network() | {
        ("output", name): of_rms(10 * share),
        ("input", name): lambda step: None if step % 10 else of_rms(10),
    }
    return diagnosed_by([DeadLayer(), DropoutTooHigh()], run(SMOOTH, tensors, **options))


def test_a_smooth_activation_that_passes_hardly_anything_is_shut():
    (finding,) = smooth("net.1", 1e-4)
    assert (finding.rows, finding.first_step, finding.severity) == (("net.1",), 0, Severity.CRITICAL)
    assert finding.message == (
        "net.1: the output is 0.01 % of the input in size: all of the input lies far below 0, where hardly anything passes."
    )
    assert not smooth("net.1", 0.02) and not smooth("net.3", 1e-4) and not smooth("net.1", 1e-4, loss=falling)


def hooked(zeros=0.95, dead=0.1, size=2.0, reads=0.0):
    """What is said of a layer with this share of zeros, and of dead units, in its output."""
    output = units(dead_units=dead, zeros=zeros, std=size)
    tensors = network(net_2=output) | {("input", "net.2"): Made(zeros=reads)}
    return diagnosed_by([DropoutTooHigh(), DeadUnits()], run(NETWORK, tensors, loss=falling, facts=StepFacts()))


def test_a_dropout_behind_a_layer_shows_in_its_output():
    (finding,) = [each for each in hooked() if each.rule == "DropoutTooHigh"]
    assert (finding.rows, finding.severity, finding.first_step) == (("net.2",), "warning", 9)
    assert finding.message == (
        "net.2: 95 % of the output is 0, in other elements at each step, and the rest is larger, as behind a dropout."
    )


@pytest.mark.parametrize(
    "options",
    [{"zeros": 0.85}, {"dead": 0.92}, {"size": 0.05}, {"reads": 0.9}],
    ids=["an ordinary share", "dead units", "a mask that scales nothing", "an input of zeros"],
)
def test_other_zeros_of_a_layer_are_no_dropout(options):
    assert not [each for each in hooked(**options) if each.rule == "DropoutTooHigh"]


def diagnosed_by(rules, views):
    """The findings of several rules, which let each other's statistics be collected."""
    diagnosis = Diagnosis(rules)
    for view in views:
        diagnosis.add(view)
    diagnosis.finish()
    assert not diagnosis.summary()["failed"]
    return diagnosis.findings


def test_a_linear_layer_of_zeros_is_not_called_a_dead_activation():
    assert found(DeadLayer(), run(NETWORK, network(net_2=ZEROS))) == {}


def test_half_of_the_units_dead_from_the_start_is_told_and_does_not_end_while_it_lasts():
    (finding,) = diagnosed(DeadUnits(), run(NETWORK, network(net_1=units(dead_units=0.6)), 400)).findings
    assert (finding.rows, finding.first_step, finding.is_over) == (("net.1",), 9, None)
    assert finding.message == "net.1: 60 % of the units are 0 for every sample of the step."


@pytest.mark.parametrize("share", [0.49, lambda step: 0.74 if step > 9 else 0.1, lambda step: 0.9 if step == 39 else 0.1])
def test_fewer_dead_units_are_no_finding(share):
    assert found(DeadUnits(), run(NETWORK, network(net_1=units(dead_units=share)), 200)) == {}


def test_most_of_the_units_dead_later_is_told():
    share = units(dead_units=lambda step: 0.8 if step >= 99 else 0.2)
    assert found(DeadUnits(), run(NETWORK, network(net_1=share), 200)) == {"net.1": 99}


def test_units_of_an_activation_with_a_slope_everywhere_are_not_judged():
    leaky = structure_of({"net.0": "Linear", "net.1": "LeakyReLU", "head": "Linear"})
    assert found(DeadUnits(), run(leaky, {("output", "net.1"): units(dead_units=0.9)})) == {}


def test_units_with_few_elements_in_a_step_are_not_judged():
    assert found(DeadUnits(), run(NETWORK, network(net_1=units(dead_units=0.6, count=64 * 15)))) == {}


def test_units_whose_bias_decides_are_not_judged():
    small = network(net_1=units(dead_units=0.6)) | {("input", "net.0"): of_rms(0.01)}
    assert found(DeadUnits(), run(NETWORK, small)) == {}
    pooled = structure_of({"pool": "AdaptiveAvgPool2d", "net.0": "Linear", "net.1": "ReLU", "head": "Linear"})
    tensors = {
        ("output", "pool"): units(unit_variation=0.1),
        ("output", "net.0"): Made(),
        ("output", "net.1"): units(dead_units=0.6),
    }
    assert found(DeadUnits(), run(pooled, tensors)) == {}
    killing = small | {("param", "net.0.bias"): of_rms(14.0)}
    assert found(DeadUnits(), run(NETWORK, killing)) == {"net.1": 9}


def test_half_of_the_units_may_be_dead_where_the_input_began_to_vary_later():
    """So they are in a deep network that leaves the plateau on which it started."""
    plateau = {
        ("output", "pool"): units(unit_variation=lambda step: 0.1 if step < 20 else 0.8),
        ("output", "net.0"): Made(),
        ("output", "net.1"): units(dead_units=0.6),
    }
    network_of = structure_of({"pool": "AdaptiveAvgPool2d", "net.0": "Linear", "net.1": "ReLU", "head": "Linear"})
    assert found(DeadUnits(), run(network_of, plateau, 200)) == {}
    plateau["output", "net.1"] = units(dead_units=0.8)
    assert found(DeadUnits(), run(network_of, plateau, 200)) == {"net.1": 29}


def test_exact_zeros_of_a_linear_layer_are_told():
    assert found(DeadUnits(), run(NETWORK, network(net_2=units(dead_units=0.25, zeros=0.25)))) == {"net.2": 9}
    assert found(DeadUnits(), run(NETWORK, network(net_2=units(dead_units=0.04, zeros=0.04)))) == {}
    # The outputs are tiny, but not zero.
    assert found(DeadUnits(), run(NETWORK, network(net_2=units(dead_units=0.25, zeros=0.0)))) == {}


def test_a_linear_layer_whose_weight_started_at_zero_or_is_frozen_may_give_zeros():
    dead = network(net_2=units(dead_units=0.25, zeros=0.25))
    assert found(DeadUnits(), run(NETWORK, dead | {("param", "net.2.weight"): later(of_rms(0.01), 1, ZEROS)})) == {}
    assert found(DeadUnits(), run(NETWORK, dead, facts=StepFacts(frozen=("net.2.weight",)))) == {}


def test_a_depthwise_convolution_inherits_the_zeros_of_its_input():
    dead = {("output", name): units(dead_units=0.25, zeros=0.25) for name in ("deep", "wide")}
    model = structure_of(
        {"stem": "Conv2d", "deep": "Conv2d", "wide": "Conv2d"}, {"deep": (64, 1, 3, 3), "wide": (64, 64, 3, 3)}
    )
    assert found(DeadUnits(), run(model, {("output", "stem"): units()} | dead)) == {"wide": 9}
    alone = structure_of({"deep": "Conv2d"}, {"deep": (64, 1, 3, 3)})
    assert found(DeadUnits(), run(alone, {("output", "deep"): dead["output", "deep"]})) == {"deep": 9}


GATED = structure_of(
    {"net.0": "Linear", "net.1": "Tanh", "net.2": "Linear", "net.3": "Sigmoid", "net.4": "Linear", "net.5": "Tanh"}
)


def tanh(slope):
    return Made(std=np.sqrt(1 - slope), low=-1, high=1)


def gates(**outputs):
    tensors = {("output", module.name): Made(std=0.3, low=-1, high=1) for module in GATED.modules}
    tensors["output", "net.3"] = Made(mean=0.5, std=0.2, low=0, high=1)
    return tensors | {("output", name.replace("_", ".")): made for name, made in outputs.items()}


def test_an_activation_that_is_saturated_from_the_start_is_told_whatever_the_loss_does():
    (finding,) = diagnosed(SaturatedActivation(), run(GATED, gates(net_1=tanh(0.05)), loss=falling)).findings
    assert (finding.rows, finding.first_step) == (("net.1",), 0)
    assert finding.message == "net.1: the mean slope is 5 % of the largest one."


def test_an_activation_that_saturates_later_is_told_while_the_loss_does_not_fall():
    open_at_first = Made(std=0.3, low=-1, high=1)
    tensors = gates(net_1=later(tanh(0.02), 60, open_at_first))
    assert warned(SaturatedActivation(), run(GATED, tensors)) == {"net.1": 60}
    assert warned(SaturatedActivation(), run(GATED, tensors, loss=falling)) == {}
    assert found(SaturatedActivation(), run(GATED, gates(net_1=later(tanh(0.04), 60, open_at_first)))) == {}


def test_the_slope_of_a_sigmoid_follows_from_its_output():
    # Half of the outputs are 0.01, the other half 0.99, so that y − y² is 0.0099 on average, 4 % of the largest slope.
    assert found(SaturatedActivation(), run(GATED, gates(net_3=Made(mean=0.5, std=0.49, low=0, high=1)))) == {"net.3": 0}


def test_a_closed_gate_and_the_last_activation_of_a_network_may_be_saturated():
    closed = Made(mean=0.01, std=0.005, low=0.0, high=0.1)
    assert found(SaturatedActivation(), run(GATED, gates(net_3=closed))) == {}
    assert found(SaturatedActivation(), run(GATED, gates(net_5=tanh(0.001)))) == {}


def test_an_output_that_does_not_depend_on_the_input_is_told_if_the_loss_does_not_fall():
    (finding,) = diagnosed(ConstantOutput(), run(NETWORK, network(net_2=units(unit_variation=0.0004)))).findings
    assert (finding.rows, finding.first_step) == (("net.2",), 9)
    assert finding.message == "net.2: units vary by 0.04 % of their size over the samples of the step (at step 9: 0.04 %)."
    assert found(ConstantOutput(), run(NETWORK, network(net_2=units(unit_variation=0.00051)))) == {}
    assert warned(ConstantOutput(), run(NETWORK, network(net_2=units(unit_variation=0.0004)), loss=falling)) == {}


def test_a_constant_output_is_told_within_60_steps_and_a_short_one_not_at_all():
    constant = run(NETWORK, network(net_2=units(unit_variation=0.0004)), 60)
    assert found(ConstantOutput(), constant) == {"net.2": 9}
    for_a_while = units(unit_variation=lambda step: 0.0004 if 60 <= step < 100 else 0.3)
    assert found(ConstantOutput(), run(NETWORK, network(net_2=for_a_while), 200)) == {}


def test_an_output_of_the_model_that_collapses_is_told_while_the_loss_falls():
    collapses = units(unit_variation=lambda step: 0.3 if step < 60 else 0.0004)
    assert warned(ConstantOutput(), run(NETWORK, network(head=collapses), 140, loss=falling)) == {"head": 69}
    assert warned(ConstantOutput(), run(NETWORK, network(head=units(unit_variation=0.0004)), loss=falling)) == {}


EQUAL = units(unit_variation=0.0)


@pytest.mark.parametrize(("output", "first"), [(EQUAL, 9), (lambda step: ZEROS, 0)], ids=["one value", "zeros"])
def test_outputs_of_the_model_that_are_all_equal_are_told_while_the_loss_falls(output, first):
    (finding,) = diagnosed(ConstantOutput(), run(NETWORK, network(net_2=units(), head=output), 60, loss=falling)).findings
    assert (finding.rows, finding.first_step, finding.severity) == (("head",), first, "warning")
    assert finding.message == "head: every sample gets exactly the same output."
    # Ten updates lie between the outputs of steps 9 and 19, and twenty between those of steps 9 and 29.
    assert warned(ConstantOutput(patience=1, updates=9), run(NETWORK, network(head=EQUAL), 20, loss=falling)) == {"head": 9}
    assert warned(ConstantOutput(patience=1), run(NETWORK, network(head=EQUAL), 20, loss=falling)) == {}


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"net_2": EQUAL}, {}),
        ({"head": EQUAL}, {"facts": StepFacts(frozen=("head.weight",))}),
        ({"head": units(unit_variation=1e-5)}, {}),
        ({"head": units(unit_variation=0.0, count=64)}, {}),
        ({"head": lambda step: Made() if step % 10 else ZEROS}, {}),
    ],
    ids=["a hidden layer", "frozen", "nearly equal", "one sample", "now and then"],
)
def test_equal_outputs_that_prove_nothing_are_notes_at_most(changes, options):
    assert warned(ConstantOutput(), run(NETWORK, network(**changes), 120, loss=falling, **options)) == {}


def test_steps_without_a_learning_rate_do_not_count_for_equal_outputs():
    updates = {("update", "head.weight"): lambda step: of_rms(1.0) if step >= 60 else Made(std=0.0, low=0.0, high=0.0)}
    outputs = network(head=units(unit_variation=lambda step: 0.0 if step <= 60 else 0.3))
    assert warned(ConstantOutput(), run(NETWORK, outputs | updates, 120, loss=falling)) == {}
    assert warned(ConstantOutput(), run(NETWORK, network(head=EQUAL) | updates, 120, loss=falling)) == {"head": 9}


def test_the_output_for_single_samples_is_not_called_constant():
    assert found(ConstantOutput(), run(NETWORK, network(net_2=units(unit_variation=0.0, count=64)))) == {}


def test_massive_units_are_a_note():
    (finding,) = diagnosed(MassiveActivation(), run(NETWORK, network(net_2=units(outlier_units=2.0)))).findings
    assert (finding.severity, finding.rows, finding.first_step) == (Severity.INFO, ("net.2",), 9)
    assert finding.message == "net.2: 2 units above 100 and above 674 times the usual size."
    assert found(MassiveActivation(), run(NETWORK, network(net_2=units(outlier_units=0.0)))) == {}


def test_rules_on_activations_say_what_they_lack():
    views = run(NETWORK, network())
    assert reason(DeadLayer(), without_structure(views)) == "the structure of the model is not known"
    assert reason(DeadLayer(), run(NETWORK, {("param", "head.weight"): Made()})) == "no row has `output`"
    assert reason(SaturatedActivation(), views) == "the model has no module Sigmoid or Tanh"
    assert reason(DeadUnits(), run(NETWORK, {("input", "head"): Made()})) == "no row has `output`"
