"""The rule on experts and routers."""

from lightning_hooks.health.rules.units import UnitCollapse
from tests.health.rules.made import Made, diagnosed, found, reason, run, structure_of

MIXTURE = structure_of({f"layer.experts.{i}.{j}": kind for i in range(4) for j, kind in enumerate(["Linear", "ReLU"])})


def experts(*loads, model=MIXTURE):
    """Experts with the numbers of elements that they get at each step; a number may be a function of the step."""
    tensors = {}
    for i, load in enumerate(loads):
        for j in range(2):
            tensors["output", f"layer.experts.{i}.{j}"] = lambda step, load=load: _output(
                load(step) if callable(load) else load
            )
    return run(model, tensors, 60)


def _output(count):
    return Made(count=count) if count else None


def test_an_expert_that_gets_all_elements_is_told():
    (finding,) = diagnosed(UnitCollapse(), experts(0, 0, 512, 0)).findings
    assert (finding.rows, finding.first_step) == (("layer.experts.2.0",), 20)
    assert (
        finding.message
        == "layer.experts.2.0: the expert got 100 % of the elements of all experts in 20 steps (at step 19: 100 %)."
    )


def test_experts_that_share_the_load_over_some_steps_are_no_finding():
    assert found(UnitCollapse(), experts(128, 128, 128, 128)) == {}
    assert found(UnitCollapse(), experts(10, 20, 450, 30)) == {}
    assert found(UnitCollapse(), experts(*(lambda step, i=i: 512 if step % 4 == i else 0 for i in range(4)))) == {}


def test_a_router_that_always_chooses_one_unit_is_told():
    model = structure_of({"router.0": "Linear", "router.1": "Softmax", "head.1": "Softmax"})
    one = Made(units={"effective_units": 1.1})
    views = run(model, {("output", "router.1"): one, ("output", "head.1"): one})
    assert found(UnitCollapse(), views) == {"router.1": 20}
    views = run(model, {("output", "router.1"): Made(units={"effective_units": 1.3})})
    assert found(UnitCollapse(), views) == {}


def test_a_model_without_experts_or_with_few_is_not_judged():
    views = run(structure_of({"net.0": "Linear"}), {("output", "net.0"): Made()})
    assert reason(UnitCollapse(), views) == "the model has no list of at least 4 experts and no router"
    two = structure_of({f"layer.experts.{i}.0": "Linear" for i in range(2)})
    assert "no list of at least 4 experts" in reason(UnitCollapse(), experts(0, 512, model=two))
