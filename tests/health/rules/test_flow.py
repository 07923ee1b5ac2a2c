"""Rules on what reaches a parameter: no gradient, no change, no call; each names the row and the step since which."""

from dataclasses import replace

import pytest

from lightning_hooks.health.rules.flow import NoGradient, UnchangedParameter, UnusedOutput
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, ParameterFacts, StepFacts
from tests.health.rules.made import Made, diagnosed, found, of_rms, reason, run, sparse, structure_of

MODEL = structure_of({"a": "Linear", "b": "Linear", "emb": "Embedding"})
NAMES = ("a.weight", "b.weight", "emb.weight")
ZERO = Made(std=0.0, low=0.0, high=0.0, zeros=1.0)


def facts_of(names=NAMES, lr=0.1, **options):
    return StepFacts((OptimizerFacts("SGD", (GroupFacts(lr, 0.0, tuple(names)),)),), **options)


def steps_of(grad=None, *, update=None, param=None, output=None, facts=None, steps=60, rename=None):
    """A run of healthy rows, some of which are replaced by name."""
    modules = {each.name: (output or {}).get(each.name, of_rms(1.0)) for each in MODEL.modules}
    tensors = {("output", name): made for name, made in modules.items()}
    for tensor, changes in (("grad", grad), ("update", update), ("param", param)):
        tensors |= {(tensor, name): (changes or {}).get(name, of_rms(1.0)) for name in NAMES}
    return run(MODEL, tensors, steps=steps, facts=facts or facts_of())


USUAL = of_rms(1.0)


def from_step(step, then, before=USUAL):
    return lambda now: then if now >= step else before


def test_a_parameter_that_never_gets_a_gradient_is_told_after_five_steps():
    assert found(NoGradient(), steps_of({"a.weight": None}, steps=6)) == {"a.weight": 0}
    assert found(NoGradient(), steps_of({"a.weight": None}, steps=4)) == {}


def test_a_gradient_that_is_lost_is_told_since_it_is_missing():
    (finding,) = diagnosed(NoGradient(), steps_of({"b.weight": from_step(40, None)})).findings
    assert finding.rows == ("b.weight",) and finding.first_step == 40
    assert finding.message == "b.weight: the optimizer holds it and gets no gradient (lost)."


def test_a_gradient_stays_lost_when_the_window_has_lost_the_steps_at_which_it_was_there():
    (finding,) = diagnosed(NoGradient(), steps_of({"b.weight": from_step(40, None)}, steps=400)).findings
    assert finding.is_over is None and finding.first_step == 40


def test_a_gradient_of_exactly_zero_counts_if_others_have_one():
    assert found(NoGradient(), steps_of({"a.weight": ZERO})) == {"a.weight": 0}
    assert found(NoGradient(), steps_of(dict.fromkeys(NAMES, ZERO))) == {}
    assert found(NoGradient(), steps_of({"emb.weight": ZERO})) == {}


def shut(output=ZERO, steps=60, moving=0):
    """A run in which the gradient of `a.weight` is 0, and so is that of its module's output, if no other one is given.

    The learning rate is above 0 from the step `moving` on.
    """
    tensors = {("output_grad", name): output if name == "a" else of_rms(1.0) for name in ("a", "b", "emb")}
    for tensor in ("grad", "update", "param"):
        tensors |= {(tensor, name): of_rms(1.0) for name in NAMES}
    tensors |= {("update", name): from_step(moving, of_rms(1.0), ZERO) for name in NAMES} | {("grad", "a.weight"): ZERO}
    return run(MODEL, tensors, steps=steps, facts=facts_of())


def test_a_path_is_shut_if_the_gradient_of_an_output_is_zero_for_ten_updates_after_the_first():
    (finding,) = diagnosed(NoGradient(), shut()).findings
    assert (finding.tensor, finding.first_step) == ("output_grad", 0)
    assert (
        finding.message == "a.weight: its gradient is exactly 0, because so is that of its module's output (since the start)."
    )
    assert found(NoGradient(), shut(steps=12)) == {"a.weight": 0} and found(NoGradient(), shut(steps=11)) == {}
    assert found(NoGradient(lasting=3), shut(steps=5)) == {"a.weight": 0}


def test_updates_without_a_rate_open_no_path():
    assert found(NoGradient(), shut(steps=36, moving=25)) == {} and found(NoGradient(), shut(steps=37, moving=25)) != {}


def test_a_gradient_that_is_zero_behind_an_output_that_gets_one_is_told_after_five_steps():
    (finding,) = diagnosed(NoGradient(), shut(output=of_rms(0.1), steps=6)).findings
    assert finding.message == "a.weight: its gradient is exactly 0, while others are not (since the start)."


def test_a_parameter_of_an_optimizer_that_steps_at_other_steps_is_judged_at_its_own():
    even = {name: lambda step: of_rms(1.0) if step % 2 == 0 else None for name in ("a.weight",)}
    odd = {"b.weight": lambda step: of_rms(1.0) if step % 2 else None}
    views = steps_of({"a.weight": None, **odd}, update={**even, **odd})
    assert found(NoGradient(), views) == {"a.weight": 0}
    assert len(diagnosed(NoGradient(), views).findings) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"grad": {"a.weight": lambda step: None if step % 7 == 0 else of_rms(1.0)}},
        {"grad": {"a.weight": None}, "output": {"a": None}},
        {"grad": {"a.weight": None}, "facts": facts_of(NAMES, frozen=("a.weight",))},
        {"grad": {"a.weight": None}, "facts": facts_of(("b.weight",))},
        {"grad": {"a.weight": None}, "param": {"a.weight": lambda step: of_rms(1 + 0.01 * step)}},
        {"grad": {"a.weight": None}, "update": {"a.weight": None}},
        {"grad": {"a.weight": from_step(10, None)}},
    ],
    ids=["now and then", "not called", "frozen", "not held", "moves by itself", "no step of its optimizer", "short history"],
)
def test_a_gradient_that_is_missing_for_a_reason_is_no_finding(options):
    assert found(NoGradient(), steps_of(**options)) == {}


def test_a_parameter_that_does_not_change_is_told_since_it_stands_still():
    views = steps_of(update={"a.weight": from_step(30, ZERO)})
    (finding,) = diagnosed(UnchangedParameter(), views).findings
    assert finding.rows == ("a.weight",) and finding.first_step == 30
    assert finding.message == "a.weight: the step changes nothing of it, although its gradient reaches 3."


@pytest.mark.parametrize(
    "options",
    [
        {"update": {"a.weight": lambda step: ZERO if step % 4 < 2 else of_rms(1.0)}},
        {"update": {"a.weight": ZERO}, "facts": facts_of(lr=0.0)},
        {"update": {"a.weight": ZERO}, "facts": facts_of(lr=None)},
        {"update": {"a.weight": ZERO}, "facts": facts_of(lr=1e-6)},
        {"update": {"a.weight": ZERO}, "grad": {"a.weight": ZERO}},
        {"update": dict.fromkeys(NAMES, ZERO)},
        {"update": {"a.weight": ZERO}, "facts": facts_of(("b.weight",))},
    ],
    ids=["two steps", "rate 0", "rate unknown", "below the resolution", "no gradient", "a skipped step", "not held"],
)
def test_a_parameter_that_stands_still_for_a_reason_is_no_finding(options):
    assert found(UnchangedParameter(), steps_of(**options)) == {}


@pytest.mark.parametrize("rule", [NoGradient(), UnchangedParameter()])
def test_a_rule_says_which_tensor_is_not_measured(rule):
    views = run(MODEL, {("param", "a.weight"): of_rms(1.0)}, facts=facts_of())
    assert reason(rule, views) in ("no row has `grad`", "no row has `update`")


def test_a_missing_gradient_is_told_without_outputs():
    tensors = {(tensor, name): of_rms(1.0) for tensor in ("grad", "update", "param") for name in NAMES}
    assert found(NoGradient(), run(MODEL, tensors | {("grad", "a.weight"): None}, facts=facts_of())) == {"a.weight": 0}


BODY, HEAD, TAIL = of_rms(1.0), of_rms(0.7, zeros=0.5), of_rms(0.3)
THREE = structure_of({"body": "Linear", "head": "Linear", "tail": "Linear"})


def three(order, inputs, without, gradient=None, model=THREE):
    """A run of three layers, executed in this order, one of which has no gradient."""
    tensors = {("input", name): inputs[name] for name in order}
    tensors |= {("output", name): of_rms(2.0 + i) for i, name in enumerate(order)}
    names = [each.name for each in model.parameters]
    for tensor in ("grad", "update", "param"):
        tensors |= {(tensor, name): of_rms(1.0) for name in names}
    tensors |= {("grad", name): gradient for name in names if name.startswith(without)}
    return run(model, tensors, steps=20, facts=facts_of(names))


@pytest.mark.parametrize(
    ("order", "inputs", "without", "is_unused"),
    [
        (["body", "head", "tail"], [BODY, HEAD, HEAD], "head", True),
        (["body", "tail", "head"], [BODY, HEAD, HEAD], "head", True),
        (["body", "head", "tail"], [BODY, HEAD, TAIL], "head", False),
        (["body", "head", "tail"], [BODY, BODY, HEAD], "head", False),
        (["body", "head", "tail"], [BODY, HEAD, HEAD], "body", False),
    ],
    ids=["read beside it", "last", "reads a new tensor", "reads data", "the first"],
)
def test_an_output_that_nothing_reads_is_no_cut_graph(order, inputs, without, is_unused):
    views = three(order, dict(zip(order, inputs, strict=True)), without)
    expected = {f"{without}.weight": 0, f"{without}.bias": 0}
    assert found(UnusedOutput(), views) == (expected if is_unused else {})
    assert found(NoGradient(), views) == ({} if is_unused else expected)


@pytest.mark.parametrize("units", [64, 10])
def test_zero_times_an_output_may_be_added_to_what_the_next_layer_reads_if_it_has_as_many_units(units):
    model = structure_of({"body": "Linear", "head": "Linear", "tail": "Linear"}, {"head": (units, 64)})
    views = three(["body", "head", "tail"], {"body": BODY, "head": HEAD, "tail": HEAD}, "head", ZERO, model)
    assert ("head.weight" in found(NoGradient(), views)) is (units == 64)
    notes = {each.message for each in diagnosed(UnusedOutput(), views).findings}
    assert notes == (
        {"head.weight: its gradient is exactly 0, and no later module reads its output."} if units == 10 else set()
    )


def test_nothing_is_said_of_an_output_until_inputs_are_measured():
    """Modules that run last have nothing behind them that could read their output. Only the inputs say so."""
    order = ["body", "tail", "head"]
    views = three(order, dict.fromkeys(order, None), "head")
    assert found(UnusedOutput(), views) == found(NoGradient(), views) == {}


def test_an_output_that_nothing_reads_is_no_cut_graph_if_the_run_ends_between_two_steps_of_rows():
    """The last row is of step 18, at which no rule looks before the run ends at step 19."""
    views = sparse(three(["body", "head", "tail"], {"body": BODY, "head": HEAD, "tail": HEAD}, "head"), 3)
    assert found(NoGradient(), views) == {} and found(UnusedOutput(), views) == {"head.weight": 0, "head.bias": 0}


RNN = structure_of({"rnn": "RNN"})
WEIGHTS = [f"rnn.weight_{kind}_l0{side}" for kind in ("ih", "hh") for side in ("", "_reverse")]
RNN = replace(RNN, parameters=tuple(ParameterFacts(name, "rnn", (8, 8), "float32") for name in WEIGHTS))


def recurrent(zeros, inputs=USUAL):
    tensors = {("input", "rnn"): inputs, ("output", "rnn"): USUAL}
    for tensor in ("grad", "update", "param"):
        tensors |= {(tensor, name): ZERO if tensor == "grad" and name in zeros else of_rms(1.0) for name in WEIGHTS}
    return run(RNN, tensors, steps=20, facts=facts_of(WEIGHTS))


def test_a_direction_that_is_read_at_its_first_element_is_information_and_sequences_of_one_element_are_told():
    one = recurrent(["rnn.weight_hh_l0_reverse"])
    assert found(UnusedOutput(), one) == {"rnn.weight_hh_l0_reverse": 0} and found(NoGradient(), one) == {}
    (finding,) = diagnosed(NoGradient(), recurrent(WEIGHTS[2:])).findings
    assert finding.tensor == "input" and finding.message == (
        "rnn.weight_hh_l0, then 1 more: its gradient is exactly 0, because it multiplies nothing but zeros (since the start)."
    )
    (finding,) = diagnosed(NoGradient(), recurrent(WEIGHTS[:2], ZERO)).findings
    assert finding.tensor == "input" and finding.rows == tuple(WEIGHTS[:2])
    (finding,) = diagnosed(NoGradient(), recurrent(WEIGHTS[:1])).findings
    assert finding.tensor == "grad" and "because" not in finding.message
