"""Each line of the table of causes explains its findings, and leaves those that contradict it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.errors import RuleError
from lightning_hooks.health import conditions, first_steps, steps_before, tied_heads
from lightning_hooks.health.cause_rule import CauseRule, entry_of
from lightning_hooks.health.causes import CAUSES, EARLIER, explain
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.finding import Finding
from lightning_hooks.health.past import Past
from lightning_hooks.health.rule import Severity, Symptom
from lightning_hooks.health.rules import rules_by_name
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.facts import (
    GroupFacts,
    ModuleFacts,
    OptimizerFacts,
    ParameterFacts,
    Sighting,
    StepFacts,
    Structure,
)
from lightning_hooks.records.step_view import StepView
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.schema import ABS_SUM, COUNT, MAX, MEAN, MIN, ZEROS
from tests.health.rules.made import of_rms, run, structure_of

RULES = [*rules_by_name()]
NAMES = """
LearningRateTooHigh LearningRateTooLow InitializationTooLarge InitializationTooSmall ActivationsDead ActivationsSaturated
GradientCut ParametersForgotten BadBatch NumericalRange DataNotNormalised ClippingStopsLearning UnitCollapsed
GradientsNotCleared GradientsClearedEarly InputOfZeros PathShut WeightDecayDominates EvaluationMode ReplicasApart DropoutTooHigh
LossAtChance WeightsWritten GradientsMixed ClippingMisplaced AccumulationNotDivided OptimizerWritesCopy ResumedWithoutState
TargetsIgnored
TargetsChange TargetsMisplaced
TieLost
VectorsFrozen
ScheduleMismatch
BetasSwapped
LossComparesAll LossGivenWrongNumbers RecurrenceExplodes
""".split()


def finding(entry, first=1, rows=("fc",), number=1, severity=Severity.WARNING, **options):
    rule, tensor, side, twice = entry_of(entry)
    rows = (*rows, "norm") if twice else rows
    symptom = Symptom(
        rows[0], tensor=tensor or "", step=first, measured=20.0 if side != "<" else 0.1, threshold=2.0, text="numbers"
    )
    return Finding(
        rule,
        rows=rows,
        tensor=tensor or "",
        first_step=first,
        last_step=first,
        severity=severity,
        evidence=(symptom,),
        message="message",
        number=number,
        **{"tensors": (tensor,) if tensor else (), **options},
    )


def findings_of(*entries, **options):
    return [finding(entry, number=number, **options) for number, entry in enumerate(entries, 1)]


def evidence_in_evaluation():
    evidence = Evidence()
    evidence.add(StepView(0, facts=StepFacts(evaluating=("norm",))))
    return evidence


def evidence_of(tensor, stat, moments, **facts):
    """Evidence of one view whose rows are `fc` or `fc.weight`."""
    evidence = Evidence([(tensor, stat)])
    name = "fc" if tensor == "input" else "fc.weight"
    count = len(moments)
    index = RowIndex([name] * count, ["param", tensor][-count:], order=range(count))
    evidence.add(StepView(0, rows=index, moments=np.array(moments), **facts))
    return evidence


def all_of(value):
    """The moments of four elements that have this value."""
    moments = np.zeros(MOMENTS)
    moments[[COUNT, MEAN, ABS_SUM, MIN, MAX]] = 4.0, value, 4 * abs(value), value, value
    moments[ZEROS] = 4.0 if value == 0 else 0.0
    return moments.tolist()


def far_step():
    ones, twos = ([4.0, 0.0, 4.0 * size, 2.0, 0.0, -size, size, 0.0, 0.0] for size in (1.0, 2.0))
    return evidence_of("update", "ratio", [ones, twos])


def many_steps(ratios, **options):
    """Evidence of steps that change each of some weights by a share."""
    evidence = Evidence([("update", "ratio")])
    index = RowIndex(["a.weight", "b.weight"] * 2, ["param"] * 2 + ["update"] * 2, order=range(4))
    for step, ratio in enumerate(ratios):
        moments = np.array([all_of(value) for value in (1.0, 1.0, ratio, ratio)])
        evidence.add(StepView(step, rows=index, moments=moments, **options))
    return evidence


def rates_of(*rates):
    """Evidence of steps with these learning rates of the second of two groups."""
    evidence = Evidence()
    for step, rate in enumerate(rates):
        groups = (GroupFacts(0.0, 0.0, ("a",)), GroupFacts(rate, 0.0, ("b",)))
        evidence.add(StepView(step, facts=StepFacts((OptimizerFacts("SGD", groups),))))
    return evidence


def jump_at(last):
    """Evidence of a loss that is steady, and jumps at its last step."""
    evidence = Evidence([("loss", "mean")])
    index = RowIndex(["loss"], ["loss"])
    for step in range(last - 40, last + 1):
        evidence.add(StepView(step, rows=index, moments=np.array([all_of(50.0 if step == last else 1.0 + 0.01 * (step % 2))])))
    return evidence


def structure(dtype):
    return Structure((ModuleFacts("fc", "Linear", "linear"),), (ParameterFacts("fc.weight", "fc", (2, 2), dtype),))


def half_without_gradient(dtype="float16", gradient=0.0):
    return evidence_of("grad", "abs_max", [all_of(gradient)], structure=structure(dtype))


def weight_of(value):
    return evidence_of("param", "norm", [all_of(value)], structure=structure("float32"))


def reached(value):
    """Evidence of a layer whose output has a gradient of this value."""
    evidence = Evidence([("output_grad", "abs_max")])
    moments = np.array([all_of(value)])
    evidence.add(StepView(0, rows=RowIndex(["fc"], ["output_grad"]), moments=moments, structure=structure("float32")))
    return evidence


def input_of(value):
    return evidence_of("input", "zero_fraction", [all_of(value)])


def module_of(inputs, outputs, role="other"):
    """Evidence of a module behind another one, with the values of its input and its output."""
    evidence = Evidence([("input", "zero_fraction"), ("output", "zero_fraction")])
    index = RowIndex(["first", "rescale", "rescale"], ["output", "input", "output"], order=[0, 2])
    moments = np.array([all_of(1.0), all_of(inputs), all_of(outputs)])
    facts = (ModuleFacts("first", "Linear", "linear"), ModuleFacts("rescale", "Norm", role))
    evidence.add(StepView(0, rows=index, moments=moments, structure=Structure(facts)))
    return evidence


def shut(output=-2.0, gradient=0.0):
    """Evidence of a layer whose outputs all have this value, and get this gradient."""
    evidence = Evidence([("output", "max"), ("output_grad", "abs_max")])
    index = RowIndex(["fc", "fc"], ["output", "output_grad"], order=[0])
    moments = np.array([all_of(output), all_of(gradient)])
    evidence.add(StepView(0, rows=index, moments=moments, structure=structure("float32")))
    return evidence


def through_time(recurrent, share=1.0, step=0):
    """Evidence of a recurrent weight with this gradient beside a head with one of 1, where a step changed weights so much."""
    names = ["rnn.weight_hh_l0", "head.weight"]
    facts = Structure(
        (ModuleFacts("rnn", "RNN", "recurrent"), ModuleFacts("head", "Linear", "linear")),
        tuple(ParameterFacts(name, name.partition(".")[0], (2, 2), "float32") for name in names),
    )
    evidence = Evidence([("grad", "norm"), ("update", "ratio")])
    index = RowIndex(names * 3, ["param"] * 2 + ["grad"] * 2 + ["update"] * 2)
    for at in range(step + 1):
        sizes = (1.0, 1.0, recurrent if at == step else 1.0, 1.0, share, share)
        held = OptimizerFacts("SGD", (GroupFacts(0.02, 0.0, tuple(names)),))
        values = np.array([all_of(size) for size in sizes])
        evidence.add(StepView(at, rows=index, moments=values, structure=facts, facts=StepFacts((held,))))
    return evidence


def at_chance(ratio=1e-3):
    """Evidence of a head whose loss and gradient are those of ten equal probabilities, and of the size of its steps."""
    needs = [("output", "count"), ("output_grad", "rms"), ("output_grad", "mean"), ("update", "ratio")]
    tensors = {
        ("output", "head"): of_rms(1.0, count=320),
        ("output_grad", "head"): of_rms(0.3 / 32, count=320),
        ("param", "head.weight"): of_rms(1.0),
        ("update", "head.weight"): of_rms(ratio),
    }
    evidence = Evidence(needs)
    for view in run(structure_of({"head": "Linear"}, {"head": (10, 64)}), tensors, 80, loss=lambda step: 2.3 + step % 2 / 99):
        evidence.add(view)
    return evidence


def tied_head(size):
    """Evidence of a head that has the weight of an embedding, whose first numbers have this size."""
    table = ParameterFacts("embed.weight", "embed", (50, 64), "float32", ("head.weight",))
    structure = Structure((ModuleFacts("embed", "Embedding", "embedding"), ModuleFacts("head", "Linear", "linear")), (table,))
    tensors = {("output", "head"): of_rms(1.0), ("param", "embed.weight"): of_rms(size)}
    evidence = Evidence([("param", "rms"), ("output", "rms")])
    for view in run(structure, tensors, 2):
        evidence.add(view)
    return evidence


def large_head(size=1.0):
    """Evidence of a head whose first weight has this size."""
    evidence = Evidence([("param", "rms"), ("output", "rms")])
    tensors = {("output", "head"): of_rms(1.0), ("param", "head.weight"): of_rms(size)}
    for view in run(structure_of({"head": "Linear"}, {"head": (10, 64)}), tensors, 2):
        evidence.add(view)
    return evidence


def far_batch(size=100.0, moved=1e-3, steps=30):
    """Evidence of a first layer whose outputs are 1, and this size at step 1, the last one, after a step that moved it."""
    evidence = Evidence([("output", "abs_max"), ("update", "ratio")])
    index = RowIndex(["fc", "fc.weight", "fc.weight"], ["output", "param", "update"], order=range(3))
    for step in range(2 - steps, 2):
        moments = np.array([all_of(size if step == 1 else 1.0), all_of(1.0), all_of(moved)])
        evidence.add(StepView(step, rows=index, moments=moments, structure=structure("float32")))
    return evidence


def pairs(level):
    """Evidence of a loss of pairs that began at that of one half, and stands at a level."""
    losses = level + np.where(np.arange(260) < 5, 0.75 - level, 0.0) + 0.001 * np.random.default_rng(0).normal(size=260)
    evidence = Evidence([("loss", "mean")])
    index = RowIndex(["loss"], ["loss"])
    for step, loss in enumerate(losses.tolist()):
        evidence.add(StepView(step, rows=index, moments=np.array([all_of(loss)])))
    return evidence


def faded(first=1e-5, kind="linear", between=(2e-4, 3e-3)):
    """Evidence of four weights, with these shares of the last one's gradient at the first step."""
    parameters = tuple(ParameterFacts(f"{name}.weight", name, (2, 2), "float32") for name in "abcd")
    linear = (ModuleFacts(name, "Linear", "linear") for name in "bcd")
    facts = Structure((ModuleFacts("a", "Module", kind), *linear), parameters)
    tensors = {("param", f"{name}.weight"): of_rms(1.0) for name in "abcd"}
    tensors |= {("grad", f"{name}.weight"): of_rms(share) for name, share in zip("bcd", (*between, 1.0), strict=True)}
    tensors["grad", "a.weight"] = lambda step: of_rms(first if step == 0 else 1e-9)
    evidence = Evidence([("grad", "rms")])
    for view in run(facts, tensors, 2):
        evidence.add(view)
    return evidence


def lost_halves(dtype="float16", gradient=1.0, since=1):
    """Evidence of a weight that is infinite from a step on, whose gradient had this value at the first step."""
    evidence = Evidence([("param", "nonfinite"), ("grad", "nonfinite")])
    index = RowIndex(["fc.weight"] * 2, ["param", "grad"], order=range(2))
    lost = [4.0, 0.0, 0.0, 0.0, np.inf, -np.inf, 0.0, 4.0, 0.0]
    for step in range(2):
        moments = [all_of(1.0) if step < since else lost, all_of(gradient) if np.isfinite(gradient) else lost]
        evidence.add(StepView(step, rows=index, moments=np.array(moments), structure=structure(dtype)))
    return evidence


def frozen_vectors():
    """Evidence of an optimizer that holds a frozen embedding."""
    vectors = ParameterFacts("embed.weight", "embed", (50, 64), "float32")
    structure = Structure((ModuleFacts("embed", "Embedding", "embedding"),), (vectors,))
    held = OptimizerFacts("Adam", (GroupFacts(0.1, 0.0, ("embed.weight",)),))
    evidence = Evidence()
    evidence.add(StepView(0, facts=StepFacts((held,), frozen=("embed.weight",)), structure=structure))
    return evidence


def saturated(output):
    """Evidence of a tanh all of whose outputs have this value."""
    evidence = Evidence([("output", "mean"), ("output", "rms")])
    facts = Structure((ModuleFacts("tanh", "Tanh", "activation"),), ())
    evidence.add(StepView(0, rows=RowIndex(["tanh"], ["output"]), moments=np.array([all_of(output)]), structure=facts))
    return evidence


def two_weights():
    parameters = tuple(ParameterFacts(f"{name}.weight", name, (2, 2), "float32") for name in "ab")
    return Structure(tuple(ModuleFacts(name, "Linear", "linear") for name in "ab"), parameters)


def moved(factor, steps=14):
    """Evidence of two weights of which other code leaves this share after each step, and the optimizer changes a thousandth."""
    evidence, facts = Evidence([("param", "rms"), ("update", "ratio")]), two_weights()
    index = RowIndex(["a.weight", "b.weight"] * 2, ["param"] * 2 + ["update"] * 2, order=range(4))
    for step in range(steps):
        sizes = factor**step, factor**step / 1000
        moments = np.array([all_of(size) for size in sizes for _ in range(2)])
        evidence.add(StepView(step, rows=index, moments=moments, structure=facts))
    return evidence


def sighted(kind, **fields):
    """Evidence of one step at which a lookout has seen something."""
    evidence = Evidence()
    evidence.add(StepView(0, facts=StepFacts(sightings=(Sighting(kind, "it is seen", **fields),))))
    return evidence


EVIDENCE = (
    evidence_in_evaluation,
    far_step,
    lambda: many_steps([5e-5, 5e-5, 5e-5]),
    lambda: rates_of(0.1, 0.5),
    lambda: rates_of(*[0.1] * 5, *[1e-4] * 20),
    lambda: saturated(1.0),
    lambda: moved(0.9),
    lambda: jump_at(1),
    half_without_gradient,
    lambda: weight_of(0.0),
    lambda: reached(2.0),
    lambda: input_of(0.0),
    lambda: module_of(2.0, 0.0),
    lambda: module_of(2.0, 0.0, "activation"),
    at_chance,
    lambda: at_chance(0.9),
    large_head,
    far_batch,
    lambda: tied_head(1.0),
    frozen_vectors,
    lambda: sighted("betas-swapped"),
    shut,
    lambda: through_time(40.0),
    faded,
    lost_halves,
)


def holds(rule, evidence, begin):
    """Whether the facts of a run, and the steps before its findings, allow a cause."""
    return (rule.condition is None or rule.condition(evidence)) and (rule.history is None or rule.history(evidence, begin))


def evidence_for(rule):
    """Evidence that allows a cause."""
    return next(evidence for make in EVIDENCE if holds(rule, evidence := make(), 1))


@pytest.mark.parametrize(
    "condition, without",
    [
        (conditions.is_at_chance, Evidence()),
        (conditions.is_at_chance_in_ordinary_steps, at_chance(1e-6)),
        (conditions.is_at_chance_in_ordinary_steps, at_chance(0.9)),
        (conditions.has_float16_without_gradient, half_without_gradient("float32")),
        (conditions.has_float16_without_gradient, half_without_gradient(gradient=0.5)),
        (conditions.has_weights_of_zeros, weight_of(0.5)),
        (conditions.is_at_chance_by_large_steps, pairs(0.6931)),
        (conditions.has_gradients_in_backward, reached(0.0)),
        (tied_heads.has_large_head, large_head(0.1)),
        (conditions.has_input_of_zeros, input_of(0.5)),
        (conditions.has_module_that_gives_zeros, module_of(0.0, 0.0)),
        (conditions.has_module_that_gives_zeros, module_of(2.0, 1.0)),
        (conditions.has_module_that_gives_zeros, module_of(2.0, 0.0, "activation")),
        (conditions.has_no_module_that_gives_zeros, module_of(2.0, 0.0)),
        (conditions.has_activation_of_zeros, module_of(2.0, 1.0, "activation")),
        (conditions.has_activation_without_slope, saturated(0.99)),
        (conditions.has_shut_layer, shut(gradient=0.1)),
        (conditions.has_shut_layer, shut(output=0.0)),
        (first_steps.has_faded_from_start, faded(0.1)),
        (first_steps.has_faded_from_start, faded(kind="embedding")),
        (first_steps.has_faded_from_start, faded(between=(0.04, 0.1))),
        (steps_before.has_lowered_rate, rates_of(*[0.1] * 10, *[1e-4] * 20)),
        (steps_before.has_lowered_rate, rates_of(*[0.1] * 5, *[2e-3] * 20)),
        (steps_before.has_lowered_rate, rates_of(*[0.1 * (1 + np.cos(np.pi * step / 99)) for step in range(100)])),
    ],
    ids=[
        "no loss",
        "hardly a step",
        "far too large steps",
        "float32",
        "a gradient",
        "a weight",
        "a loss of pairs that is exactly at chance",
        "no gradient in backward",
        "a head of ordinary size",
        "an input",
        "zeros before it",
        "not zeros",
        "an activation",
        "a module that gives zeros",
        "an activation of others",
        "a slope",
        "a gradient below 0",
        "an output of 0",
        "a gradient that faded later",
        "an embedding",
        "a gradient that ends at one layer",
        "a rate that was high for a third of the run",
        "a rate that fell to a fiftieth",
        "a cosine to the end",
    ],
)
def test_a_condition_can_fail(condition, without):
    assert not condition(without) and not condition(Evidence()) and any(condition(make()) for make in EVIDENCE)


@pytest.mark.parametrize(
    "ratios, begin, holds",
    [
        ([0.05] * 40, 39, False),
        ([0.6, *[0.05] * 39], 39, True),
        ([*[0.05] * 30, 0.6], 39, False),
        ([*[0.05] * 30, *[0.2] * 10], 39, True),
        ([*[0.05] * 30, *[0.2] * 10], 38, False),
        ([*[0.05] * 25, *[0.2, 0.2, 0.2, 0.2, 0.05] * 4], 44, False),
        ([], 0, False),
    ],
    ids=["small", "an early one", "a late one", "ten in a row", "nine before", "with gaps", "none"],
)
def test_steps_have_gone_too_far_if_one_is_huge_early_or_ten_in_a_row_are_large(ratios, begin, holds):
    assert steps_before.has_stepped_too_far(many_steps(ratios), begin) is holds


def test_biases_that_start_at_zero_do_not_step_too_far():
    shares = {"fc.weight": 0.01, "fc.bias": 0.9, "out.bias": 0.9}
    tensors = {("param", name): of_rms(1.0) for name in shares}
    tensors |= {("update", name): of_rms(share) for name, share in shares.items()}
    evidence = Evidence([("update", "ratio")])
    for view in run(structure_of({"fc": "Linear", "out": "Linear"}), tensors, 5):
        evidence.add(view)
    assert not steps_before.has_stepped_too_far(evidence, 4)


@pytest.mark.parametrize(
    "evidence, holds",
    [
        (lost_halves(), True),
        (lost_halves("float32"), False),
        (lost_halves(gradient=np.inf), False),
        (lost_halves(since=2), False),
    ],
    ids=["float16", "float32", "after a gradient", "not yet"],
)
def test_float16_weights_are_lost_by_an_update_if_no_gradient_was_infinite_before(evidence, holds):
    assert first_steps.has_lost_float16_weights(evidence, 1) is holds


@pytest.mark.parametrize(
    "rates, begin, holds",
    [
        ([0.1, 0.5], 1, True),
        ([0.1, 0.4], 1, False),
        ([0.1, *[0.5] * 20], 11, True),
        ([0.1, *[0.5] * 20], 12, False),
        ([0.1, 0.5], 0, False),
        ([0.0, 0.5], 1, False),
        ([None, 0.5], 1, False),
        ([0.1 * 2**step for step in range(12)], 11, False),
    ],
    ids=["at once", "less", "ten before", "eleven before", "after", "from zero", "unknown", "by and by"],
)
def test_a_learning_rate_is_raised_if_it_rises_fivefold_in_one_step_shortly_before(rates, begin, holds):
    assert steps_before.has_raised_rate(rates_of(*rates), begin) is holds


def test_a_first_loss_far_above_chance_is_that_of_a_tied_head_if_its_weight_begins_as_that_of_an_embedding():
    (cause,) = explain(findings_of("InitialLoss", rows=("head",)), tied_head(1.0))
    assert (cause.name, cause.confidence) == ("InitializationTooLarge", "likely")
    assert cause.message == (
        "The head has the weight of an embedding, which begins too large for a head: head. embed.weight began with a root mean "
        "square of 1, so that 64 inputs of 1 make outputs of 8."
    )
    assert not explain(findings_of("InitialLoss", rows=("head",)), tied_head(0.1))
    assert not explain(findings_of("InitialLoss", rows=("head",)), at_chance())


def test_what_follows_a_raised_rate_is_no_bad_batch_and_no_lone_death_of_units():
    findings = findings_of("LossSpike", "GradientSpike", "DeadUnits", "NoGradient", first=1)
    (cause,) = explain(findings, rates_of(0.1, 4.0, 0.1))
    assert (cause.name, cause.numbers) == ("LearningRateTooHigh", (1, 2, 3, 4))
    assert cause.message.startswith("The learning rate rose to a multiple within a step, and then the training broke: ")
    causes = explain(findings, rates_of(0.1, 0.1, 0.1))
    assert sorted(cause.name for cause in causes) == ["ActivationsDead", "BadBatch"]


def decisive(rule):
    """The least findings that a cause needs: each of `required`, with each of `any_of` in turn."""
    return [(*rule.required, each) for each in rule.any_of] or [rule.required]


LINES = [pytest.param(rule, entries, id=f"{rule.name}-{'+'.join(entries)}") for rule in CAUSES for entries in decisive(rule)]


@pytest.mark.parametrize("rule, entries", LINES)
def test_the_decisive_findings_are_explained_by_their_cause(rule, entries):
    (cause,) = explain(findings_of(*entries), evidence_for(rule))
    assert cause.name == rule.name and len(cause.findings) == len(entries) and cause.next_steps
    assert cause.alternatives or cause.confidence == "certain"


@pytest.mark.parametrize("rule, entries", LINES)
def test_all_supporting_findings_belong_to_the_cause(rule, entries):
    everything = tuple(dict.fromkeys((*entries, *rule.supporting)))
    (cause,) = explain(findings_of(*everything), evidence_for(rule), [rule])
    assert (cause.confidence in ("certain", "likely") or len(everything) == 1) and len(cause.numbers) == len(everything)


@pytest.mark.parametrize("rule, entries", LINES)
def test_no_cause_without_its_decisive_findings(rule, entries):
    for missing in rule.required or entries:
        rest = [entry for entry in (*entries, *rule.supporting) if entry != missing and entry not in rule.any_of]
        assert explain(findings_of(*dict.fromkeys(rest)), evidence_for(rule), [rule]) == []


@pytest.mark.parametrize("rule, excluding", [pytest.param(r, e, id=f"{r.name}-{e}") for r in CAUSES for e in r.excluding])
def test_an_excluding_finding_contradicts_the_cause(rule, excluding):
    assert explain(findings_of(*decisive(rule)[0], excluding), evidence_for(rule), [rule]) == []


def test_the_table_names_rules_and_causes_that_exist():
    for rule in CAUSES:
        for text in (*rule.required, *rule.any_of, *rule.supporting, *rule.excluding):
            assert entry_of(text).rule in RULES, f"{rule.name} names {text}"
    assert {rule.name for rule in CAUSES} == set(NAMES)


@pytest.mark.parametrize(
    ("rule", "cause"),
    [("ClearedBeforeStep", "GradientsClearedEarly"), ("GradientsOfAnotherLoss", "GradientsMixed")],
)
def test_a_fault_of_the_order_explains_a_loss_that_stands_still(rule, cause):
    (found,) = explain(findings_of(rule, "ZeroGradients", "LossConstant"), Evidence())
    assert found.name == cause
    assert len(found.findings) == 3


def test_clipping_at_the_wrong_place_explains_steps_that_are_too_large():
    (found,) = explain(findings_of("ClippingMisplaced", "LossDiverged"), Evidence())
    assert found.name == "ClippingMisplaced"
    assert explain(findings_of("ClippingMisplaced"), Evidence()) == []


def test_a_sum_that_is_not_divided_explains_harm_and_a_note_on_it_nothing():
    (found,) = explain(findings_of("AccumulationNotDivided", "LossConstant", "DeadUnits"), Evidence())
    assert (found.name, len(found.findings)) == ("AccumulationNotDivided", 3)
    assert explain(findings_of("AccumulationNotDivided", severity=Severity.INFO), Evidence()) == []


def test_units_that_died_in_ordinary_steps_are_no_sign_of_the_learning_rate():
    assert [cause.name for cause in explain([finding("DeadUnits")], Evidence())] == ["ActivationsDead"]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(RULES), st.integers(0, 200)), max_size=12), st.randoms())
def test_a_finding_has_one_cause_at_most_and_the_order_of_findings_does_not_matter(drawn, random):
    findings = [finding(rule, first, number=number) for number, (rule, first) in enumerate(drawn, 1)]
    causes = explain(findings, Evidence())
    numbers = [number for cause in causes for number in cause.numbers]
    assert len(numbers) == len(set(numbers))
    random.shuffle(findings)
    assert explain(findings, Evidence()) == causes


def losses_of(*losses):
    """Evidence of steps with these losses."""
    evidence, index = Evidence(), RowIndex(["loss"], ["loss"])
    for step, loss in enumerate(losses):
        evidence.add(StepView(step, rows=index, moments=np.array([all_of(loss)])))
    return evidence


def test_what_grew_before_it_overflowed_diverged_and_what_did_not_had_an_operation_without_a_result():
    (diverged,) = explain([finding("NonFinite", first=4, rows=("",))], losses_of(10, 278, 3.6e4, 1e20))
    assert diverged.name == "LearningRateTooHigh"
    assert "The loss grew from 10 at step 0 to 1e+20 at step 3." in diverged.message
    for losses in ([2.3, 2.1, 2.2, 2.0, 1.9] * 4, [2.3] * 19 + [90.0]):
        (cause,) = explain([finding("NonFinite", first=20, rows=("",))], losses_of(*losses))
        assert cause.name == "NumericalRange"


def test_the_number_from_which_a_loss_grew_is_no_outlier():
    (cause,) = explain([finding("NonFinite", first=30, rows=("",))], losses_of(1e5, *[1.0] * 26, 3.0, 20.0, 90.0))
    assert "The loss grew from 1 at step 1 to 90 at step 29." in cause.message


def test_a_window_without_a_step_of_rows_says_nothing_of_updates():
    evidence = many_steps([0.1] * 40, is_between=True)
    assert [cause.name for cause in explain([finding("DeadUnits", first=30)], evidence)] == ["ActivationsDead"]


def test_a_divergence_says_how_large_the_steps_were_and_how_many_times_too_large():
    (cause,) = explain([finding("NonFinite", first=3)], many_steps([1.7, 2.5, 9.0]))
    assert cause.name == "LearningRateTooHigh"
    assert "Step 0 changed the median weight by 170 % of it; about 0.1 % is usual" in cause.message
    assert "the rate must be 1700 times smaller" in cause.message


def test_a_rate_of_zero_is_not_to_be_multiplied():
    (cause,) = explain([finding("LearningRateZero"), finding("UpdateTooSmall", number=2)], Evidence())
    assert cause.name == "LearningRateTooLow" and not any("ultiply" in step for step in cause.next_steps)


def test_eight_symptoms_of_one_learning_rate_are_one_cause():
    rules = ("UpdateTooLarge", "LossSpike", "LossDiverged", "ExplodingGradient", "DeadUnits", "WeightGrowth", "NonFinite")
    (cause,) = explain(findings_of(*rules, first=30), Evidence())
    assert cause.name == "LearningRateTooHigh" and cause.confidence == "likely" and cause.first_step == 30
    (alone,) = explain([finding("NoGradient")], Evidence())
    assert alone.name == "GradientCut" and alone.message.endswith("between it and the loss.")


def test_missing_gradients_are_no_matter_of_weights_that_start_at_zero():
    assert [cause.name for cause in explain([finding("NoGradient@update")], weight_of(0.0))] == ["GradientCut"]
    assert [cause.name for cause in explain([finding("NoGradient@grad")], weight_of(0.0))] == ["InitializationTooSmall"]
    assert [cause.name for cause in explain([finding("NoGradient@input")], weight_of(0.5))] == ["InputOfZeros"]


def test_a_layer_below_zero_is_what_gives_the_next_one_zeros():
    (cause,) = explain(findings_of("NoGradient@input", "ZeroInput"), shut(-2.5))
    assert cause.name == "ActivationsDead" and len(cause.numbers) == 2
    assert "so that no gradient passes: fc. The largest output of fc is -2.5." in cause.message


def test_a_gradient_explodes_through_time_if_it_did_so_before_a_step_was_too_large():
    (cause,) = explain([finding("NonFinite@loss", first=1, rows=("",))], through_time(40.0))
    assert cause.name == "RecurrenceExplodes"
    assert "At step 0 the norm of the gradient of rnn.weight_hh_l0 was 80, 40 times that" in cause.message
    assert "the learning rate is 0.02" in cause.message
    after = explain([finding("NonFinite@loss", first=9, rows=("",))], through_time(40.0, step=8))
    small = explain([finding("NonFinite@loss", first=1, rows=("",))], through_time(4.0))
    assert [each.name for each in (*after, *small)] == ["LearningRateTooHigh"] * 2


def test_a_path_is_shut_where_zeros_reach_an_output_and_dead_where_an_activation_gives_them():
    dead, shut = finding("DeadUnits", severity=Severity.INFO, number=2), finding("NoGradient@output_grad")
    zeros, ordinary = module_of(2.0, 0.0, "activation"), module_of(2.0, 2.0, "activation")
    assert [cause.name for cause in explain([shut], ordinary)] == ["PathShut"]
    assert [cause.name for cause in explain([shut, dead], ordinary)] == ["PathShut"]
    assert [cause.name for cause in explain([shut, dead], zeros)] == ["ActivationsDead"]
    assert [cause.name for cause in explain([finding("NoGradient@grad")], ordinary)] == ["GradientCut"]


def test_a_symptom_long_before_the_decisive_finding_stands_alone():
    findings = [finding("UpdateTooLarge", 200, number=1), finding("DeadUnits", 200 - EARLIER - 1, number=2)]
    assert [cause.name for cause in explain(findings, Evidence())] == ["LearningRateTooHigh", "ActivationsDead"]


def test_a_forgotten_parameter_explains_its_own_rows_only():
    findings = [
        finding("NotInOptimizer", rows=("head.weight",), number=1),
        finding("UnchangedParameter", rows=("head.weight",), number=2),
        finding("UpdateTooSmall", rows=("encoder.weight",), number=3),
    ]
    forgotten, slow = explain(findings, Evidence())
    assert forgotten.name == "ParametersForgotten" and forgotten.numbers == (1, 2) and "head.weight" in forgotten.message
    assert slow.name == "LearningRateTooLow" and slow.numbers == (3,)


def test_a_copy_that_an_optimizer_writes_into_explains_why_its_parameter_stands_still():
    still = [finding("CopyUpdated", rows=("a",)), finding("UnchangedParameter", rows=("a",), number=2)]
    other = finding("UnchangedParameter", rows=("b",), number=3)
    (cause,) = explain([*still, other], Evidence())
    assert (cause.name, cause.numbers) == ("OptimizerWritesCopy", (1, 2))


def test_what_a_resume_has_lost_explains_the_spike_that_follows():
    (cause,) = explain([finding("StateNotRestored", rows=("",)), finding("LossSpike", number=2)], Evidence())
    assert (cause.name, cause.numbers) == ("ResumedWithoutState", (1, 2))


def test_the_side_of_the_threshold_decides_between_too_large_and_too_small():
    assert [c.name for c in explain([finding("PoorInitialization>")], Evidence())] == ["InitializationTooLarge"]
    assert [c.name for c in explain([finding("PoorInitialization<")], Evidence())] == ["InitializationTooSmall"]


def test_a_norm_whose_statistics_stand_is_not_in_evaluation_mode_without_the_fact():
    assert explain([finding("NormStatistics")], Evidence()) == []


def test_a_cause_is_as_severe_as_the_worst_of_its_findings():
    findings = [finding("LossSpike", number=1, severity=Severity.INFO), finding("GradientSpike+", number=2)]
    assert explain(findings, Evidence())[0].severity is Severity.WARNING


def test_notes_have_no_cause():
    assert explain([finding("LossSpike", severity=Severity.INFO)], Evidence()) == []


def test_a_bad_batch_is_seen_by_the_loss_or_at_two_parameters():
    assert explain([finding("GradientSpike")], Evidence()) == []
    assert explain([finding("GradientSpike", harm="the loss has not fallen: it was 2 and is 2")], Evidence()) == []
    for seen in (finding("GradientSpike+"), finding("GradientSpike", harm="the loss jumps from 2 to 9 at step 1")):
        assert [cause.name for cause in explain([seen], Evidence())] == ["BadBatch"]


def test_what_is_so_now_does_not_rest_on_what_is_over():
    clipped, still = finding("ClippingAlways", severity=Severity.INFO), finding("LossConstant", number=2)
    assert [cause.name for cause in explain([clipped, still], Evidence())] == ["ClippingStopsLearning"]
    assert explain([clipped, finding("LossConstant", number=2, is_over=90)], Evidence()) == []


def test_no_single_symptom_stands_above_a_loss_at_chance_while_weights_move():
    symptoms = findings_of("LossConstant", "DeadUnits", "UpdateTooSmall", "ClippingAlways")
    causes = explain(symptoms, at_chance())
    assert [cause.name for cause in causes] == ["LossAtChance"]
    assert "outputs do not depend on inputs, or labels do not belong to them" in causes[0].message
    assert [cause.name for cause in explain(findings_of("LossConstant", "UpdateTooSmall"), at_chance(1e-6))] == [
        "LearningRateTooLow"
    ]
    (far,) = explain(findings_of("LossConstant"), at_chance(0.9))
    assert far.name == "LearningRateTooHigh" and "changed the median weight by 90 % of it; about 0.1 % is usual" in far.message
    assert [cause.name for cause in explain(findings_of("LossConstant", "DeadLayer"), at_chance())] == ["ActivationsDead"]
    assert [cause.name for cause in explain(findings_of("LossConstant", "ConstantOutput"), at_chance())] == ["LossAtChance"]


def names_of(findings, evidence):
    return [cause.name for cause in explain(findings, evidence)]


def test_a_loss_of_zero_is_no_sign_of_cleared_gradients():
    assert names_of([finding("ZeroGradients")], reached(2.0)) == ["GradientsClearedEarly"]
    assert names_of([finding("ZeroGradients@loss")], reached(2.0)) == []


def test_weights_that_code_changes_at_most_steps_explain_what_the_steps_look_like():
    findings = findings_of("MovesBetweenSteps", "UpdateTooLarge", "VanishingGradient", first=2)
    (cause,) = explain(findings, moved(0.9))
    assert (cause.name, cause.numbers) == ("WeightsWritten", (1, 2, 3))
    assert cause.message.startswith(
        "Other code than the optimizer changes most weights between any two steps: fc, since step 2."
    )
    for ordinary in (moved(1.0), moved(0.9, steps=8)):
        assert names_of(findings, ordinary) == ["LearningRateTooHigh"]


def test_weights_that_code_changes_once_broke_what_stays_above_all_losses_before():
    written = [finding("MovesBetweenSteps", first=60)]
    learned = np.concatenate([np.linspace(2.8, 1.6, 30), np.full(30, 1.6), np.full(30, 2.8)])
    assert names_of(written, losses_of(*learned)) == ["WeightsWritten"]
    assert names_of(written, losses_of(*learned[:69])) == ["WeightsWritten"]
    assert names_of(written, losses_of(*np.linspace(2.8, 1.6, 90))) == []


def test_weights_that_code_changes_in_several_layers_are_written_whatever_the_loss_did_at_that_step():
    written = finding("MovesBetweenSteps", first=60, rows=("a.weight", "b.weight"))
    (cause,) = explain([written], losses_of(*np.linspace(2.8, 1.6, 90)))
    assert (cause.name, cause.confidence) == ("WeightsWritten", "possible")
    assert cause.message.startswith("Other code changed weights between two steps: a.weight")
    noted = finding("MovesBetweenSteps", rows=("a.weight", "b.weight"), severity=Severity.INFO)
    assert explain([noted], Evidence()) == []


def test_steps_that_float16_weights_cannot_hold_are_no_matter_of_the_rate_alone():
    lost = [finding("LostUpdates"), finding("SlowLearning", number=2)]
    assert names_of(lost, half_without_gradient(gradient=0.5)) == ["NumericalRange"]
    assert names_of(lost, half_without_gradient("bfloat16")) == ["LearningRateTooLow"]
    by_schedule = [*lost, finding("LearningRateFallen", number=3)]
    assert "NumericalRange" not in names_of(by_schedule, half_without_gradient(gradient=0.5))


def test_targets_out_of_reach_of_tiny_steps_are_no_matter_of_their_scale():
    out_of_reach, clipped = finding("TargetsOutOfReach", first=40), finding("ClippingAlways", number=2, severity=Severity.INFO)
    assert names_of([out_of_reach], many_steps([5e-5] * 50)) == ["LearningRateTooLow"]
    assert names_of([out_of_reach, clipped], many_steps([5e-5] * 50)) == ["ClippingStopsLearning"]
    assert names_of([out_of_reach, clipped], many_steps([2e-4] * 50)) == ["DataNotNormalised"]


def test_activations_that_began_saturated_come_before_the_learning_rate():
    findings = findings_of("UpdateTooLarge", "SaturatedActivation")
    assert names_of(findings, saturated(0.99)) == ["ActivationsSaturated"]
    assert names_of(findings, saturated(0.5)) == ["LearningRateTooHigh"]
    note = finding("SaturatedActivation", severity=Severity.INFO)
    assert names_of([note, finding("NoGradient@output_grad", number=2)], saturated(1.0)) == ["ActivationsSaturated"]
    assert names_of([note, finding("NoGradient@output_grad", number=2)], saturated(0.99)) == ["PathShut"]


def test_a_rate_that_fell_early_explains_a_loss_that_stands():
    assert names_of([finding("LossConstant")], rates_of(*[0.1] * 5, *[1e-4] * 20)) == ["LearningRateTooLow"]
    assert names_of([finding("LossConstant")], rates_of(*[0.1] * 25)) == []


def test_steps_that_are_too_small_are_told_with_their_size():
    (cause,) = explain([finding("UpdateTooSmall", first=0)], many_steps([1e-6] * 20, structure=two_weights()))
    assert "changes the median weight by 0.0001 % of it; about 0.1 % is usual" in cause.message
    assert "the rate must be 1000 times larger." in cause.message


@pytest.mark.parametrize(("rate", "is_told"), [(0.05, True), (0.002, False)])
def test_a_rate_that_nobody_uses_is_not_all_of_the_advice(rate, is_told):
    facts = StepFacts((OptimizerFacts("SGD", (GroupFacts(rate, 0.0, ("a", "b")),)),))
    steps = many_steps([1e-6] * 20, structure=two_weights(), facts=facts)
    (cause,) = explain([finding("UpdateTooSmall", first=0)], steps)
    assert ("No usual rate is so large: look at the size of the loss" in cause.message) is is_told


def test_a_no_is_asked_again_while_the_steps_before_are_known():
    asked, answers = [], iter([False, True])

    def history(evidence, begin):
        asked.append(begin)
        return next(answers)

    rule, past = CauseRule(name="Tired", message="", required=("LossSpike",), history=history), Past()
    assert [past.shown(rule, Evidence(), 3).holds for _ in range(3)] == [False, True, True] and asked == [3, 3]


def test_the_cause_of_a_batch_does_not_depend_on_the_order_of_rows():
    assert [c.name for c in explain([finding("NonFinite", tensors=("grad", "input"))], Evidence())] == ["BadBatch"]
    assert [c.name for c in explain([finding("NonFinite", tensors=("grad", "output"))], Evidence())] == ["NumericalRange"]


def test_a_wrong_line_is_an_error():
    with pytest.raises(RuleError, match="cause Tired must have a finding in required or any_of"):
        CauseRule(name="Tired", message="m")
    with pytest.raises(RuleError, match="an entry of a cause must be the name of a rule"):
        entry_of("a b")


def test_a_batch_that_is_far_from_all_others_comes_before_the_learning_rate():
    (cause,) = explain(findings_of("LossSpike", "LossDiverged", "NonFinite", first=3), far_batch())
    assert (cause.name, cause.confidence, cause.numbers) == ("BadBatch", "likely", (1, 2, 3))
    assert cause.message == (
        "The data of one step is far larger than all data before, and then training broke: fc, since step 3. The largest "
        "output of fc is 100 at step 1, and had not been above 1."
    )


@pytest.mark.parametrize(
    "evidence",
    [far_batch(20.0), far_batch(np.inf), far_batch(moved=0.6), far_batch(steps=12)],
    ids=["not far enough", "not finite", "the weight moved", "too early"],
)
def test_outputs_that_the_weight_or_the_beginning_explains_are_no_bad_batch(evidence):
    assert "BadBatch" not in names_of(findings_of("LossDiverged", first=3), evidence)


def test_a_head_that_begins_too_large_is_named_with_its_numbers():
    (cause,) = explain(findings_of("InitialLoss", rows=("head",)), large_head())
    assert (cause.name, cause.confidence) == ("InitializationTooLarge", "likely")
    assert cause.message.endswith(
        "before anything is learned: head. head.weight began with a root mean square of 1, so that 64 inputs of 1 make "
        "outputs of 8."
    )
    assert explain(findings_of("InitialLoss", rows=("head",)), large_head(0.1)) == []


def test_a_gradient_that_ends_behind_the_last_layer_is_not_cleared():
    """As an activation that is a hook of the head ends it."""
    tensors = {("output", name): of_rms(1.0) for name in ("fc", "head")}
    tensors |= {("output_grad", "fc"): of_rms(0.0, low=0.0, high=0.0), ("output_grad", "head"): of_rms(1.0)}
    evidence = Evidence([("output_grad", "abs_max")])
    for view in run(structure_of({"fc": "Linear", "head": "Linear"}), tensors, 2):
        evidence.add(view)
    assert not conditions.has_gradients_in_backward(evidence)
    assert names_of(findings_of("ZeroGradients", "DeadUnits"), evidence) == ["ActivationsDead"]


def test_betas_that_may_be_meant_explain_nothing_and_others_are_named_with_their_numbers():
    findings = findings_of("BetasSwapped", "LossDiverged", rows=("",))
    (cause,) = explain(findings, sighted("betas-swapped"))
    assert cause.name == "BetasSwapped" and cause.message.endswith("squared gradients. It is seen.")
    assert names_of(findings[:1], sighted("betas-swapped")) == ["BetasSwapped"]
    causes = explain(findings, sighted("betas-swapped", is_fact=False))
    assert [each.name for each in causes] == ["LearningRateTooHigh"]
