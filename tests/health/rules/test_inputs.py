"""The rule on inputs: far from mean 0 and standard deviation 1, and what the first loss and the units behind show of that."""

from dataclasses import replace

import pytest

from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.rules.activations import ConstantOutput
from lightning_hooks.health.rules.first_loss import InitialLoss
from lightning_hooks.health.rules.inputs import InputNotNormalised
from tests.health.rules.made import Made, diagnosed, found, of_rms, reason, run, structure_of

DEEP = structure_of({f"net.{i}": "Linear" if i % 2 == 0 else "ReLU" for i in range(8)} | {"head": "Linear"})


def first_input(made, model=DEEP):
    return run(model, {("input", "net.0"): made, ("input", "head"): of_rms(100.0)})


def test_an_input_that_is_not_normalised_is_told():
    (finding,) = diagnosed(InputNotNormalised(), first_input(Made(mean=77.0, std=80.0))).findings
    assert (finding.rows, finding.first_step) == (("net.0",), 0)
    assert finding.message == "net.0: the input has a root mean square of 111."
    (finding,) = diagnosed(InputNotNormalised(), first_input(Made(mean=-20.0, std=1.0))).findings
    assert finding.message == "net.0: the mean of the input is 20 times its standard deviation."
    (finding,) = diagnosed(InputNotNormalised(), first_input(Made(mean=0.0, std=5e-4))).findings
    assert finding.message == "net.0: the input has a root mean square of 0.0005."


@pytest.mark.parametrize(("loss", "severity"), [(10.2, "warning"), (2.4, "info")])
def test_a_large_input_is_a_fact_where_the_first_loss_is_that_of_outputs_which_are_sure_of_something(loss, severity):
    model = structure_of({"net.0": "Linear", "head": "Linear"}, weights={"head": (10, 64)})
    slope = Made(std=0.3 / 32, low=-1 / 32, high=1 / 32, count=320)
    tensors = {("input", "net.0"): of_rms(100.0), ("output_grad", "head"): slope}
    diagnosis = Diagnosis([InputNotNormalised(), InitialLoss()])
    for view in run(model, tensors, loss=lambda step: loss if step < 5 else 2.4 / (1 + step)):
        diagnosis.add(view)
    diagnosis.finish()
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.severity) == ("InputNotNormalised", severity)
    about = "; the loss began at 10.2, and ln(10), the loss of guesses, is 2.3" if severity == "warning" else ""
    assert finding.message == f"net.0: the input has a root mean square of 100{about}."


@pytest.mark.parametrize(
    "made", [Made(), Made(mean=5.0, std=6.0), Made(mean=0.9, std=0.01), Made(mean=9.0, std=1.0), Made(std=0.01), of_rms(0.0)]
)
def test_an_ordinary_input_is_no_finding(made):
    assert found(InputNotNormalised(), first_input(made)) == {}


def test_a_model_that_begins_with_a_norm_may_get_any_input():
    model = structure_of({"norm": "LayerNorm", "net.0": "Linear", "head": "Linear"})
    views = run(model, {("input", "norm"): of_rms(100.0), ("input", "net.0"): of_rms(100.0)})
    assert "the first layer is a norm, an embedding or in front of a norm" in reason(InputNotNormalised(), views)


@pytest.mark.parametrize("between", [{}, {"act": "ReLU"}])
def test_an_input_whose_scale_a_norm_removes_is_no_finding(between):
    model = structure_of({"conv": "Conv2d", **between, "norm": "BatchNorm2d", "head": "Linear"})
    tensors = {("input", "conv"): of_rms(100.0)} | {("output", name): Made() for name in (*between, "norm")}
    assert (found(InputNotNormalised(), run(model, tensors)) == {"conv": 0}) is bool(between)


@pytest.mark.parametrize(
    ("norm", "made", "is_told"),
    [
        ("LayerNorm", of_rms(100.0), False),
        ("LayerNorm", Made(mean=1000.0, std=1.0), True),
        ("GroupNorm", Made(mean=20.0, std=1.0), True),
        ("BatchNorm1d", Made(mean=1000.0, std=1.0), False),
        ("InstanceNorm1d", Made(mean=1000.0, std=1.0), False),
    ],
)
def test_a_norm_of_each_sample_behind_a_layer_removes_scale_and_no_offset(norm, made, is_told):
    model = structure_of({"first": "Linear", "norm": "LayerNorm", "head": "Linear"})
    modules = tuple(replace(each, type=norm) if each.name == "norm" else each for each in model.modules)
    tensors = {("input", "first"): made, ("output", "norm"): Made(), ("input", "head"): Made()}
    views = run(replace(model, modules=modules), tensors)
    assert (found(InputNotNormalised(), views) == {"first": 0}) is is_told


def varying(made, variation):
    """A run that learns with this input, in which the units of the first layer vary so much, or so much at a step."""

    def output(step):
        varies = variation(step) if callable(variation) else variation
        return Made(units={"unit_variation": varies}) if step % 10 == 0 else Made()

    tensors = {("input", "net.0"): made, ("output", "net.0"): output, ("input", "head"): Made()}
    return run(DEEP, tensors, loss=lambda step: 3.0 / (1 + step / 30))


def told(views):
    """The finding of the rule, beside rules that measure units; None if there is none."""
    diagnosis = Diagnosis([InputNotNormalised(), ConstantOutput(patience=1000)])
    for view in views:
        diagnosis.add(view)
    diagnosis.finish()
    return next(iter(diagnosis.findings), None)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Made(mean=20.0, std=1.0), "the mean of the input is 20 times its standard deviation"),
        (Made(mean=100.0, std=1.0), "the input has a root mean square of 100"),
        (of_rms(0.0005), "the input has a root mean square of 0.0005"),
    ],
    ids=["far", "large", "small"],
)
def test_an_unusual_input_is_a_fact_where_the_units_behind_it_hardly_vary(made, message):
    finding = told(varying(made, 0.05))
    assert (finding.rows, finding.severity) == (("net.0",), "warning")
    behind = "the units of the layer vary by only 5 % of their size from sample to sample"
    assert finding.message == f"net.0: {message}; {behind}."


def test_a_small_input_whose_units_hardly_vary_is_a_note_while_the_loss_falls():
    finding = told(varying(of_rms(0.02), 0.05))
    assert (finding.rows, finding.severity) == (("net.0",), "info")


def test_units_that_vary_as_usual_make_no_fact_and_ordinary_inputs_none_of_units_that_do_not():
    assert told(varying(Made(mean=20.0, std=1.0), 0.2)).severity == "info"
    assert told(varying(of_rms(0.02), 0.2)) is None
    assert told(varying(of_rms(0.04), 0.05)) is None
    assert told(varying(Made(mean=2.0, std=0.1), 0.05)) is None


def test_a_note_becomes_a_warning_when_the_units_vary_no_more():
    diagnosis, kinds = Diagnosis([InputNotNormalised(), ConstantOutput(patience=1000)]), []
    for view in varying(Made(mean=20.0, std=1.0), lambda step: 0.2 if step < 50 else 0.05):
        kinds += [(event.kind, event.finding.severity, event.step) for event in diagnosis.add(view) if event.finding]
    assert kinds == [("new", "info", 19), ("raised", "warning", 59)]
    assert diagnosis.findings[0].message.endswith("vary by only 5 % of their size from sample to sample.")
