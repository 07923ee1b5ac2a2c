"""Advice does not repeat what a model has."""

import numpy as np
import pytest

from lightning_hooks.health.advice import fitting
from lightning_hooks.health.causes import CAUSES
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.rules import DEFAULT_RULES
from lightning_hooks.records.facts import GroupFacts, ModuleFacts, OptimizerFacts, StepFacts, Structure
from lightning_hooks.records.step_view import StepView
from tests.health.rules.made import structure_of
from tests.health.views import views_of

STEPS = (
    "Put a norm before the activation.",
    "Use a loss scaler (precision 16-mixed).",
    "Clip the norm of the gradient.",
    "Look.",
)
RULES = {rule.name: rule for rule in DEFAULT_RULES}
NORM = Structure((ModuleFacts("norm", "LayerNorm", "norm"),))


def evidence_of(*views, needs=()):
    evidence = Evidence(needs)
    for view in views:
        evidence.add(view)
    return evidence


def clipped(share):
    views = views_of([("grad", "a"), ("final_grad", "a")], np.array([[1.0, share]] * 5))
    return evidence_of(*views, needs=[("grad", "norm"), ("final_grad", "norm")])


@pytest.mark.parametrize(
    ("evidence", "missing"),
    [
        (Evidence(), set()),
        (evidence_of(StepView(0, structure=NORM)), {0}),
        (evidence_of(StepView(0, facts=StepFacts(precision="16-mixed"))), {1}),
        (clipped(0.5), {2}),
        (clipped(1.0), set()),
    ],
    ids=["unknown", "norm", "scaler", "clipping", "no clipping"],
)
def test_a_step_that_the_model_has_taken_is_left_out(evidence, missing):
    assert fitting(STEPS, evidence) == tuple(step for i, step in enumerate(STEPS) if i not in missing)


def decay_of(size):
    return evidence_of(StepView(0, facts=StepFacts((OptimizerFacts("Adam", (GroupFacts(0.1, size, ("a",)),)),))))


def gradient_of(size):
    return evidence_of(*views_of([("grad", "a")], np.array([[size]] * 5)), needs=[("grad", "abs_max")])


@pytest.mark.parametrize(
    ("name", "evidence", "begin", "is_told"),
    [
        ("WeightDecayDominates", decay_of(0.1), "Lower weight_decay", False),
        ("WeightDecayDominates", decay_of(0.1), "Where weight_decay is usual", True),
        ("WeightDecayDominates", decay_of(104.0), "Lower weight_decay", True),
        ("WeightDecayDominates", decay_of(104.0), "Where weight_decay is usual", False),
        ("InitializationTooLarge", evidence_of(StepView(0, structure=NORM)), "An embedding", False),
        ("InitializationTooLarge", evidence_of(StepView(0, structure=structure_of({"a": "Embedding"}))), "An embedding", True),
    ],
)
def test_causes_advise_what_fits_the_settings(name, evidence, begin, is_told):
    (steps,) = {
        rule.next_steps for rule in CAUSES if rule.name == name and any(step.startswith(begin) for step in rule.next_steps)
    }
    assert any(step.startswith(begin) for step in fitting(steps, evidence)) is is_told


@pytest.mark.parametrize(("size", "is_told"), [(0.0, False), (np.nan, True)])
def test_a_cleared_gradient_is_searched_for_only_where_none_is_left(size, is_told):
    steps = fitting(RULES["ZeroGradients"].next_steps, gradient_of(size))
    assert any("zero_grad" in step for step in steps) is is_told


def test_some_advice_is_always_left():
    assert fitting(STEPS[:1], evidence_of(StepView(0, structure=NORM))) == STEPS[:1]


def test_rules_ask_for_a_norm_in_a_sentence_of_its_own():
    asking = [step for rule in DEFAULT_RULES for step in rule.next_steps if " norm b" in step]
    assert asking and all(step.startswith("Put a norm") for step in asking)


@pytest.mark.parametrize(("kind", "is_told"), [("Linear", False), ("RNN", True), ("AdaptiveAvgPool2d", True)])
def test_recurrent_weights_are_blamed_only_where_a_module_may_have_some(kind, is_told):
    evidence = Evidence()
    evidence.add(StepView(0, structure=structure_of({"a": kind})))
    others = ("Recurrent weights that amplify: then clipping cures it.", "A bad batch.")
    assert (others[0] in fitting(others, evidence)) is is_told
