"""Facts of a run that differ from those of a good run are told at their first step, with both values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_hooks.health.reference.learning import learn
from lightning_hooks.records.facts import GroupFacts, ModuleFacts, OptimizerFacts, StepFacts, Structure
from tests.health.reference.made import FACTS, PARAMS, STRUCTURE, compare, reference_of, run_of, said


def with_rate(rate: float, decay: float = 0.0) -> StepFacts:
    return replace(FACTS, optimizers=(OptimizerFacts("SGD", (GroupFacts(rate, decay, PARAMS),)),))


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)], ids=["one-run", "three-runs"])
def test_nothing_is_said_of_another_seed(seeds: tuple[int, ...]) -> None:
    assert compare(reference_of(*seeds), run_of(7)) == []


@pytest.mark.parametrize(
    ("facts", "rule", "row", "text"),
    [
        (
            {"evaluating": ("two",)},
            *("ReferenceModes", "two"),
            "this module is in evaluation mode, in the good run in training mode",
        ),
        (
            {"validating": ("three",)},
            *("ReferenceModes", "three"),
            "in validation this module was in training mode, in the good run in evaluation mode",
        ),
        (
            {"frozen": ("two.weight",)},
            *("ReferenceTrained", "two.weight"),
            "this parameter is frozen; in the good run it was not at this step",
        ),
        ({"precision": "bf16-mixed"}, "ReferenceSettings", "", "the precision is bf16-mixed, in the good run 32-true"),
        (
            {"accumulate": 4},
            *("ReferenceSettings", ""),
            "the batches in one step of the optimizer are 4, in the good run 1",
        ),
        (
            {"apart": ("one.weight",)},
            *("ReferenceReplicas", "one.weight"),
            "this parameter is not the same on all ranks, as it was in the good run",
        ),
    ],
    ids=["mode", "validation", "frozen", "precision", "accumulate", "replicas"],
)
def test_a_fact_that_changes_is_told_at_its_step(facts: dict[str, object], rule: str, row: str, text: str) -> None:
    good = replace(FACTS, validating=())
    changed = replace(good, **facts)
    reference = reference_of(0, facts=lambda step: good)
    (finding,) = compare(reference, run_of(7, facts=lambda step: changed if step >= 12 else good))
    assert (finding.rule, finding.rows[0], finding.first_step) == (rule, row, 12)
    assert finding.evidence[0].text == text


def test_a_schedule_that_is_ahead_is_told_with_both_rates() -> None:
    reference = reference_of(0, facts=lambda step: with_rate(0.1 if step < 10 else 0.05))
    (finding,) = compare(reference, run_of(7, facts=lambda step: with_rate(0.1 if step < 7 else 0.05)))
    assert (finding.rule, finding.first_step) == ("ReferenceSchedule", 7)
    assert finding.message == "The learning rate is 0.05, in the good run 0.1 at this step."


def test_a_weight_decay_is_compared_too() -> None:
    (finding,) = compare(reference_of(0), run_of(7, facts=lambda step: with_rate(0.1, 0.01)))
    assert finding.message == "The weight decay is 0.01, in the good run 0 at this step."


def test_a_rate_that_follows_a_metric_is_not_compared() -> None:
    good = replace(FACTS, follows_metric=True)
    reference = reference_of(0, facts=lambda step: good)
    assert compare(reference, run_of(7, facts=lambda step: replace(with_rate(0.05), follows_metric=True))) == []


def test_steps_between_those_of_the_good_run_may_have_either_value() -> None:
    good = run_of(0, steps=60, facts=lambda step: with_rate(0.1 if step < 12 else 0.05))
    sparse = [view for view in good if view.step % 5 == 0]
    reference = learn([("good", sparse)])
    assert compare(reference, run_of(7, steps=36, facts=lambda step: with_rate(0.1 if step < 14 else 0.05))) == []
    late = compare(reference, run_of(7, steps=36, facts=lambda step: with_rate(0.1 if step < 19 else 0.05)))
    assert said(late) == [("ReferenceSchedule", "", 16)]


def test_a_step_that_is_counted_once_more_after_a_resume_is_no_change() -> None:
    def settings(step: int) -> StepFacts:
        return replace(with_rate(0.1 if step < 20 else 0.05), accumulate=1 if step < 20 else 2)

    reference = reference_of(0, facts=settings)
    assert compare(reference, run_of(7, facts=lambda step: settings(step - 1))) == []
    late = compare(reference, run_of(7, facts=lambda step: settings(step - 3)))
    assert said(late) == [("ReferenceSchedule", "", 21), ("ReferenceSettings", "", 21)]


@pytest.mark.parametrize(
    ("structure", "row", "text"),
    [
        (
            Structure((*STRUCTURE.modules, ModuleFacts("five", "ReLU", "activation")), STRUCTURE.parameters),
            *("five", "this module is new: the model in the good run has none of this name"),
        ),
        (
            Structure(STRUCTURE.modules[1:], STRUCTURE.parameters),
            *("one", "the model has no module of this name any more, as in the good run"),
        ),
        (
            Structure(STRUCTURE.modules, (replace(STRUCTURE.parameters[0], shape=(8, 9)), *STRUCTURE.parameters[1:])),
            *("one.weight", "the shape of this parameter is [8, 9], in the good run [8, 8]"),
        ),
        (
            Structure(STRUCTURE.modules, (replace(STRUCTURE.parameters[0], others=("two.weight",)), *STRUCTURE.parameters[1:])),
            *("one.weight", "this parameter is tied to two.weight; in the good run it was not"),
        ),
    ],
    ids=["new", "missing", "shape", "tied"],
)
def test_another_model_is_told_at_the_first_step(structure: Structure, row: str, text: str) -> None:
    findings = compare(reference_of(0), run_of(7, structure=structure))
    assert said(findings) == [("ReferenceStructure", row, 0)]
    assert findings[0].evidence[0].text == text


def test_steps_behind_the_good_run_are_not_compared() -> None:
    reference = reference_of(0, steps=20)
    assert compare(reference, run_of(7, facts=lambda step: with_rate(0.1 if step < 20 else 0.01))) == []


def renamed(*names: str) -> Structure:
    parameters = tuple(replace(each, name=f"{names[i]}.weight") for i, each in enumerate(STRUCTURE.parameters[: len(names)]))
    return replace(STRUCTURE, parameters=parameters)


def test_a_run_of_another_model_is_told_in_one_sentence() -> None:
    other = renamed("first", "second")
    (finding,) = compare(reference_of(0), run_of(7, structure=other, facts=lambda step: replace(FACTS, optimizers=())))
    assert (finding.rule, finding.rows) == ("ReferenceStructure", ("",))
    assert finding.message == (
        "No parameter has the name of one in the good run: that is a run of another model, or all names have changed."
    )


def test_a_parameter_that_the_model_lacks_is_not_also_told_to_be_held_by_no_optimizer() -> None:
    held = GroupFacts(0.1, 0.0, ("one.weight",))
    facts = replace(FACTS, optimizers=(OptimizerFacts("SGD", (held,)),))
    findings = compare(reference_of(0), run_of(7, structure=renamed("one", "two"), facts=lambda step: facts))
    rows = {finding.rule: finding.rows for finding in findings}
    assert rows["ReferenceTrained"] == ("two.weight",)
    assert set(rows["ReferenceStructure"]) == {"three.weight", "four.weight"}
