"""Rules on membership name the parameter that no optimizer holds, and know who leaves parameters out on purpose."""

from dataclasses import replace

import pytest

from lightning_hooks.health.rules.membership import FrozenHeld, FrozenMoves, NotInOptimizer, ReplicasDiffer, StrangerInOptimizer
from lightning_hooks.records.facts import GroupFacts, ModuleFacts, OptimizerFacts, ParameterFacts, StepFacts, Structure
from tests.health.rules.made import diagnosed, found, of_rms, reason, run, structure_of, without_structure

MODEL = structure_of({"enc": "Linear", "target_enc": "Linear", "head": "Linear"})
ENC, HEAD = ("enc.weight", "enc.bias"), ("head.weight", "head.bias")
TARGET = ("target_enc.weight", "target_enc.bias")


def facts_of(*groups, strangers=0, **options):
    """The facts of one optimizer with these groups of names."""
    made = tuple(GroupFacts(0.1, 0.0, tuple(names), strangers if i == 0 else 0) for i, names in enumerate(groups))
    return StepFacts((OptimizerFacts("SGD", made),), **{"precision": "32-true", **options})


def flowing(facts, steps=10, silent=()):
    """A run in which a gradient reaches the output of each module, except for the silent ones."""
    tensors = {("output_grad", each.name): None if each.name in silent else of_rms(1.0) for each in MODEL.modules}
    return run(MODEL, tensors, steps=steps, facts=facts)


def changed(views, step, facts):
    """The same views with other facts from a step on."""
    return [replace(view, facts=facts) if view.step >= step else view for view in views]


def test_a_parameter_that_no_optimizer_holds_is_named_at_once():
    assert found(NotInOptimizer(), flowing(facts_of(HEAD), steps=1)) == {"enc.weight": 0, "enc.bias": 0}


def test_a_parameter_that_the_optimizer_loses_is_named_since_that_step():
    views = changed(flowing(facts_of(ENC, HEAD), steps=20), 7, facts_of(ENC, ["head.weight"]))
    assert found(NotInOptimizer(), views) == {"head.bias": 7}


@pytest.mark.parametrize(
    ("facts", "silent"),
    [
        (facts_of(ENC, HEAD), ()),  # the name of the other one says that it is a target
        (facts_of(HEAD, frozen=(*ENC, *TARGET)), ()),
        (facts_of(HEAD), ("enc",)),  # no gradient reaches it: under no_grad, or detached
    ],
    ids=["target by name", "frozen", "no gradient"],
)
def test_parameters_that_are_left_out_on_purpose_are_no_finding(facts, silent):
    assert found(NotInOptimizer(), flowing(facts, silent=silent)) == {}


FALLS, STANDS = (lambda step: 3 * 0.98**step), (lambda step: 3.0 + step % 3 / 99)


def frozen(names, loss=FALLS, held=(ENC, HEAD, TARGET), **options):
    return run(MODEL, {}, loss=loss, facts=facts_of(*held, frozen=names), **options)


@pytest.mark.parametrize(("loss", "severity"), [(FALLS, "info"), (STANDS, "warning")])
def test_a_frozen_parameter_that_an_optimizer_holds_is_a_note_until_the_loss_stands_still(loss, severity):
    (finding,) = diagnosed(FrozenHeld(), frozen(["enc.weight"], loss)).findings
    assert (finding.rows, finding.first_step, finding.severity) == (("enc.weight",), 0, severity)
    assert finding.message.startswith("enc.weight: it is frozen (requires_grad=False), though an optimizer holds it")


def test_of_many_frozen_parameters_their_number_is_told():
    (finding,) = diagnosed(FrozenHeld(most=1), frozen(ENC)).findings
    assert finding.message == "2 of 6 parameters that optimizers hold are frozen (requires_grad=False)."


@pytest.mark.parametrize(
    "views",
    [frozen(TARGET, STANDS), frozen(ENC, STANDS, held=(HEAD,)), frozen([], STANDS)],
    ids=["a target by its name", "not held", "nothing frozen"],
)
def test_frozen_parameters_that_no_optimizer_holds_are_no_finding(views):
    assert found(FrozenHeld(), views) == {}


def test_the_finding_ends_when_the_parameters_are_unfrozen():
    views = changed(frozen(ENC), 30, facts_of(ENC, HEAD))
    assert all(each.is_over is not None for each in diagnosed(FrozenHeld(), views).findings)


NORMS = structure_of({"net.0": "Conv2d", "net.1": "BatchNorm2d", "net.2": "Linear"})
NORMS = replace(NORMS, parameters=(*NORMS.parameters, ParameterFacts("net.1.weight", "net.1", (64,), "float32")))
ALL = tuple(each.name for each in NORMS.parameters)


@pytest.mark.parametrize(
    ("left_out", "named"),
    [
        (["net.1.weight"], []),
        (["net.1.weight", "net.2.bias"], ["net.1.weight", "net.2.bias"]),
        (["net.2.weight"], ["net.2.weight"]),
    ],
)
def test_batch_norms_alone_are_left_out_on_purpose(left_out, named):
    facts = facts_of([name for name in ALL if name not in left_out])
    views = run(NORMS, {("output_grad", each.name): of_rms(1.0) for each in NORMS.modules}, steps=3, facts=facts)
    assert sorted(found(NotInOptimizer(), views)) == named


def test_three_weights_behind_a_weight_norm_are_counted_as_three():
    names = [f"{layer}.parametrizations.weight.original{i}" for layer in "abc" for i in range(2)]
    parameters = tuple(ParameterFacts(name, name[0], (2, 2), "float32") for name in names)
    structure = Structure(tuple(ModuleFacts(name, "ParametrizedLinear", "linear") for name in "abc"), parameters)
    tensors = {("output_grad", name): of_rms(1.0) for name in "abc"}
    (finding,) = diagnosed(NotInOptimizer(), run(structure, tensors, steps=3, facts=facts_of(["d"]))).findings
    assert finding.message == "a.weight, then 2 more: no optimizer holds this parameter, which gets a gradient."


def test_an_optimizer_with_parameters_of_a_copy_is_told_with_their_number():
    (finding,) = diagnosed(StrangerInOptimizer(), flowing(facts_of(HEAD, strangers=2))).findings
    assert finding.first_step == 0 and finding.message == (
        "Optimizer 0 (SGD) holds 2 parameters that the model does not have, while no optimizer holds 2 parameters of the model."
    )


def test_a_stranger_beside_parameters_of_the_model_is_told_under_lightning_only():
    facts = facts_of(ENC, HEAD, strangers=1)
    assert found(StrangerInOptimizer(), flowing(facts)) == {"": 0}
    assert found(StrangerInOptimizer(), flowing(replace(facts, precision=None))) == {}


def test_an_optimizer_of_a_temperature_alone_is_no_finding():
    temperature = OptimizerFacts("Adam", (GroupFacts(0.1, 0.0, (), strangers=1),))
    facts = facts_of(ENC, HEAD)
    assert found(StrangerInOptimizer(), flowing(replace(facts, optimizers=(*facts.optimizers, temperature)))) == {}


PAIR = structure_of({"net.0": "Linear", "net.1": "Linear"})


FROZEN, TRAINED = ("net.0.weight", "net.0.bias"), ("net.1.weight", "net.1.bias")


def written_run(written, frozen=FROZEN, structure=PAIR, steps=20):
    """A run in which code writes to `written(step)`."""
    views = run(structure, {("grad", "net.1.weight"): of_rms(1.0)}, steps=steps)
    return [replace(view, facts=facts_of(TRAINED, frozen=frozen, written=written(view.step))) for view in views]


def always(*names):
    return lambda step: names


def test_a_frozen_parameter_that_code_writes_to_is_information_since_its_step():
    views = written_run(lambda step: ("net.0.weight",) if step >= 12 else ())
    (finding,) = diagnosed(FrozenMoves(), views).findings
    assert (finding.rows, finding.first_step, finding.severity) == (("net.0.weight",), 12, "info")
    assert finding.message == "net.0.weight: code writes to this frozen parameter, while layers beside it are trained."


@pytest.mark.parametrize(
    "views",
    [
        written_run(lambda step: ("net.0.weight",) if step % 10 == 5 else ()),
        written_run(always("net.0.weight"), frozen=(*FROZEN, *TRAINED)),
        written_run(always("slow.0.weight"), ("slow.0.weight",), structure_of({"slow.0": "Linear", "net.1": "Linear"})),
        written_run(always("net.0.weight"), structure=structure_of({"net.0": "Embedding", "net.1": "Linear"})),
        written_run(always("net.target.weight"), structure=structure_of({"net.target": "Linear", "net.1": "Linear"})),
    ],
    ids=["at single steps", "all frozen", "an average", "codes", "a target by name"],
)
def test_a_frozen_parameter_that_moves_on_purpose_is_no_finding(views):
    assert found(FrozenMoves(), views) == {}


def test_replicas_that_differ_are_named():
    views = changed(flowing(facts_of(ENC, HEAD), steps=3), 1, facts_of(ENC, HEAD, apart=("enc.weight",)))
    (finding,) = diagnosed(ReplicasDiffer(), views).findings
    assert finding.rows == ("enc.weight",) and finding.first_step == 1 and finding.severity == "critical"


@pytest.mark.parametrize(
    ("rule", "views", "says"),
    [
        (NotInOptimizer(), flowing(None), "it is not known how the steps train"),
        (NotInOptimizer(), flowing(StepFacts()), "no optimizer is known"),
        (NotInOptimizer(), without_structure(flowing(facts_of(HEAD))), "the structure of the model is not known"),
        (NotInOptimizer(), written_run(always()), "no row has `output_grad`"),
        (FrozenMoves(), written_run(always(), frozen=()), "no parameter is frozen"),
        (ReplicasDiffer(), flowing(facts_of(HEAD)), "there is one rank only"),
    ],
)
def test_a_rule_says_why_it_cannot_run(rule, views, says):
    assert reason(rule, views) == says
