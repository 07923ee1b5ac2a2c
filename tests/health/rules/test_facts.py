"""Rules on rates, weight decay, loss scale and modes speak of what the facts of a step say, and of nothing that is meant."""

from dataclasses import replace

import pytest

from lightning_hooks.health.rules.facts import LearningRateZero, ScaleCollapse, WeightDecayTooLarge
from lightning_hooks.health.rules.modes import DropoutTooHigh, EvaluationMode, NormStatistics
from lightning_hooks.records.facts import GroupFacts, ModuleFacts, OptimizerFacts, ParameterFacts, StepFacts, Structure
from tests.health.rules.made import (
    Made,
    diagnosed,
    found,
    of_rms,
    reason,
    run,
    sparse,
    structure_of,
    weights_of,
    without_structure,
)

MODEL = Structure(
    (ModuleFacts("norm", "BatchNorm1d", "norm"), ModuleFacts("drop", "Dropout", "dropout")),
    (ParameterFacts("norm.weight", "norm", (8,), "float32"), ParameterFacts("norm.bias", "norm", (8,), "float32")),
)
PARAMS = ("norm.weight", "norm.bias")


def facts_of(lr=0.1, decay=0.0, kind="SGD", **options):
    groups = (GroupFacts(lr, decay, PARAMS),) if not isinstance(lr, list) else tuple(GroupFacts(x, decay, PARAMS) for x in lr)
    return StepFacts((OptimizerFacts(kind, groups),), **{"last_step": 100, **options})


def steps_of(facts, steps=100, count=2048, structure=MODEL):
    """A run with these facts: one object, or a function of the step."""
    views = run(structure, {("output", "norm"): Made(count=count), ("output", "drop"): of_rms(1.0)}, steps=steps)
    return [replace(view, facts=facts(view.step) if callable(facts) else facts) for view in views]


def zero_from(first, last=10**9, **options):
    return lambda step: facts_of(0.0 if first <= step < last else 0.1, **options)


def test_a_rate_of_zero_is_told_since_it_is_zero():
    assert found(LearningRateZero(), steps_of(zero_from(40))) == {"": 40}
    (finding,) = diagnosed(LearningRateZero(), steps_of(facts_of(0.0), steps=4)).findings
    assert finding.message == "The learning rate of the optimizer is 0 (2 parameters, first norm.weight)."


def test_the_group_with_a_rate_of_zero_is_named():
    (finding,) = diagnosed(LearningRateZero(), steps_of(facts_of([0.1, 0.0]))).findings
    assert finding.rows == ("norm.weight",) and "group 1 of optimizer 0" in finding.message


@pytest.mark.parametrize(
    "facts",
    [
        zero_from(0, 3),
        zero_from(50, 51),
        zero_from(90),
        zero_from(80, last_step=None),
        zero_from(40, frozen=PARAMS),
        facts_of(None),
    ],
    ids=["warm-up", "a restart", "end of the schedule", "end unknown", "frozen", "rate unknown"],
)
def test_a_rate_of_zero_that_is_meant_is_no_finding(facts):
    assert found(LearningRateZero(), steps_of(facts)) == {}


def test_a_rate_that_was_always_zero_is_told_without_knowing_the_end():
    assert found(LearningRateZero(), steps_of(facts_of(0.0, last_step=None))) == {"": 2}
    # Of a fact, the look that does not find it any more is its end.
    for facts, over in ((facts_of(0.0, last_step=None), None), (zero_from(0, 350, last_step=None), 354)):
        (finding,) = diagnosed(LearningRateZero(), steps_of(facts, steps=400)).findings
        assert finding.is_over == over


def test_a_rate_that_is_zero_for_a_quarter_of_a_run_is_told_without_knowing_the_end():
    (finding,) = diagnosed(LearningRateZero(), steps_of(zero_from(40, last_step=None), steps=70)).findings
    assert (finding.first_step, finding.is_over) == (40, None)
    assert found(LearningRateZero(), steps_of(zero_from(40, last_step=None), steps=53)) == {}
    assert found(LearningRateZero(), steps_of(zero_from(4, last_step=None), steps=14)) == {}
    assert found(LearningRateZero(), steps_of(zero_from(300, last_step=None), steps=600)) == {"": 300}


def test_a_large_weight_decay_is_told_with_its_numbers():
    (finding,) = diagnosed(WeightDecayTooLarge(), steps_of(facts_of(0.01, 2.0, "AdamW"))).findings
    assert finding.first_step == 0
    assert finding.message == "norm.weight: lr 0.01 · weight_decay 2 takes 2 % of the weights away at each step."


@pytest.mark.parametrize(("decay", "told"), [(0.5, {"a": 0}), (0.2, {})])
def test_a_decay_that_outweighs_the_gradient_it_is_added_to_is_told(decay, told):
    facts = StepFacts((OptimizerFacts("Adam", (GroupFacts(1e-3, decay, ("a", "b")),)),))
    views = run(weights_of("a", "b"), {("param", n): of_rms(1.0) for n in "ab"} | {("grad", n): of_rms(0.04) for n in "ab"})
    views = [replace(view, facts=facts) for view in views]
    assert found(WeightDecayTooLarge(), views) == told
    assert found(WeightDecayTooLarge(), sparse(views, 5)) == told


def test_a_usual_decay_outweighs_the_gradient_of_what_has_been_learned():
    facts = StepFacts((OptimizerFacts("Adam", (GroupFacts(1e-3, 0.01, ("a", "b")),)),))
    learned = {("grad", n): lambda step: of_rms(1.0 if step < 30 else 1e-4) for n in "ab"}
    views = run(weights_of("a", "b"), {("param", n): of_rms(1.0) for n in "ab"} | learned)
    assert found(WeightDecayTooLarge(), [replace(view, facts=facts) for view in views]) == {}


@pytest.mark.parametrize(
    "facts",
    [facts_of(0.099, 0.1, "AdamW"), facts_of(0.1, 1.0, "Adam"), lambda step: facts_of(0.1, 1.0 if step < 9 else 0.0)],
    ids=["below 1 %", "coupled", "nine steps"],
)
def test_a_usual_weight_decay_is_no_finding(facts):
    assert found(WeightDecayTooLarge(), steps_of(facts)) == {}


def scaled(scale):
    return lambda step: facts_of(precision="16-mixed", loss_scale=float(scale(step)))


def test_a_loss_scale_that_falls_after_good_steps_or_below_one_is_told():
    assert found(ScaleCollapse(), steps_of(scaled(lambda step: 2.0 ** (16 - max(0, step - 50))))) == {"": 54}
    assert found(ScaleCollapse(), steps_of(scaled(lambda step: 2.0 ** (5 - step)), steps=20)) == {"": 6}


@pytest.mark.parametrize(
    "scale",
    [lambda step: 2.0 ** (16 - min(step, 12)), lambda step: 2.0 ** (16 - max(0, min(step - 50, 3)))],
    ids=["search at the start", "three halvings"],
)
def test_the_search_for_a_loss_scale_is_no_finding(scale):
    assert found(ScaleCollapse(), steps_of(scaled(scale))) == {}


def evaluating(names, begin=0, **options):
    return lambda step: facts_of(**options, evaluating=names if step >= begin else ())


def test_a_trained_batch_norm_in_evaluation_mode_is_named_since_that_step():
    assert found(NormStatistics(), steps_of(evaluating(("norm",), 40))) == {"norm": 40}
    assert found(EvaluationMode(), steps_of(evaluating(("norm", "drop"), 40))) == {"norm": 40, "drop": 40}
    assert diagnosed(EvaluationMode(), steps_of(evaluating(("drop",)))).findings[0].severity == "info"


@pytest.mark.parametrize(
    "facts",
    [evaluating(("norm",), frozen=PARAMS), evaluating(("norm",), lr=0.0), evaluating(("drop",)), evaluating(("norm",), 99)],
    ids=["frozen", "rate 0", "dropout", "one step"],
)
def test_a_batch_norm_in_evaluation_mode_on_purpose_is_no_finding(facts):
    assert found(NormStatistics(), steps_of(facts)) == {}


def dropping(rate, facts=None, behind=True):
    """A run of a layer and a dropout with this rate, which runs behind it or in front of it."""
    layer = structure_of({"fc": "Linear"})
    structure = replace(layer, modules=(*layer.modules, ModuleFacts("drop", "Dropout", "dropout", rate)))
    names = ["fc", "drop"] if behind else ["drop", "fc"]
    views = run(structure, {("output", name): of_rms(1.0) for name in names}, steps=6)
    return [replace(view, facts=facts or facts_of()) for view in views]


@pytest.mark.parametrize(("rates", "told"), [((0.8, 0.8), {"two": 0}), ((0.6, 0.6), {}), ((0.8, 0.0), {})])
def test_dropouts_with_no_layer_between_them_count_together(rates, told):
    layer = structure_of({"fc": "Linear"})
    drops = [ModuleFacts(name, "Dropout", "dropout", rate) for name, rate in zip(("one", "two"), rates, strict=True)]
    structure = replace(layer, modules=(*layer.modules, *drops))
    views = run(structure, {("output", name): of_rms(1.0) for name in ("fc", "one", "two")}, steps=6)
    assert found(DropoutTooHigh(), [replace(view, facts=facts_of()) for view in views]) == told


@pytest.mark.parametrize(("kind", "role"), [("Own", "other"), ("LSTM", "recurrent")])
def test_a_dropout_behind_or_in_any_layer_with_weights_is_told(kind, role):
    weight = ParameterFacts("own.weight", "own", (8, 8), "float32")
    rate = None if role == "other" else 0.95
    modules = (ModuleFacts("own", kind, role, rate), ModuleFacts("drop", "Dropout", "dropout", 0.95))
    views = run(Structure(modules, (weight,)), {("output", name): of_rms(1.0) for name in ("own", "drop")}, steps=6)
    assert found(DropoutTooHigh(), [replace(view, facts=facts_of()) for view in views]).keys() == {"own", "drop"} - (
        {"own"} if rate is None else set()
    )


@pytest.mark.parametrize(
    ("zeros", "size", "told"), [(0.97, 2.0, {"head": 0}), (0.97, 0.9, {}), (0.8, 2.0, {})], ids=["dropout", "sparse", "few"]
)
def test_a_dropout_by_function_makes_most_of_an_input_zero_and_the_rest_larger(zeros, size, told):
    tensors = {("output", "fc"): of_rms(1.0), ("input", "head"): of_rms(size, zeros=zeros)}
    views = run(structure_of({"fc": "Linear", "head": "Linear"}), tensors | {("output", "head"): of_rms(1.0)}, steps=30)
    assert found(DropoutTooHigh(), [replace(view, facts=facts_of()) for view in views]) == told


def test_a_dropout_of_almost_all_is_told_at_once_with_its_rate():
    (finding,) = diagnosed(DropoutTooHigh(), dropping(0.95)).findings
    assert finding.rows == ("drop",) and finding.first_step == 0 and finding.severity == "warning"
    assert finding.message == "drop: 95 % of the elements are set to 0 at each step."


@pytest.mark.parametrize(
    "views",
    [dropping(0.89), dropping(0.95, behind=False), dropping(0.95, facts_of(evaluating=("drop",)))],
    ids=["below 90 %", "of the input", "in evaluation mode"],
)
def test_a_dropout_that_lets_enough_through_is_no_finding(views):
    assert found(DropoutTooHigh(), views) == {}


def test_a_batch_norm_over_two_numbers_is_told_since_it_has_so_few():
    (finding,) = diagnosed(NormStatistics(), steps_of(facts_of(), count=16)).findings
    assert finding.rows == ("norm",) and finding.first_step == 0
    assert finding.message == "norm: this batch norm takes the mean and variance of 2 numbers in each channel."


def test_a_batch_norm_has_enough_numbers_from_four_on_and_shares_those_of_other_ranks_if_synchronised():
    assert found(NormStatistics(), steps_of(facts_of(), count=32)) == {}
    assert found(NormStatistics(), steps_of(facts_of(accumulate=2), count=32)) == {"norm": 0}
    synchronised = replace(MODEL, modules=(ModuleFacts("norm", "SyncBatchNorm", "norm"),))
    views = steps_of(facts_of(), count=32, structure=synchronised)
    assert found(NormStatistics(), [replace(view, ranks=2) for view in views]) == {}
    assert found(NormStatistics(), [replace(view, ranks=2) for view in steps_of(facts_of(), count=32)]) == {"norm": 0}


@pytest.mark.parametrize(
    ("rule", "views", "says"),
    [
        (LearningRateZero(), steps_of(None), "it is not known how the steps train"),
        (WeightDecayTooLarge(), steps_of(StepFacts()), "no optimizer is known"),
        (ScaleCollapse(), steps_of(facts_of()), "there is no loss scaler"),
        (NormStatistics(), steps_of(facts_of(), structure=Structure()), "the model has no batch norm"),
        (DropoutTooHigh(), steps_of(facts_of()), "no row has `input`"),
        (EvaluationMode(), without_structure(steps_of(facts_of())), "the structure of the model is not known"),
    ],
)
def test_a_rule_says_why_it_cannot_run(rule, views, says):
    assert reason(rule, views) == says
