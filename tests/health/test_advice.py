"""Advice does not repeat what a model has."""

import numpy as np
import pytest

from lightning_hooks.health.advice import fitting
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.rules import DEFAULT_RULES
from lightning_hooks.records.facts import ModuleFacts, StepFacts, Structure
from lightning_hooks.records.step_view import StepView
from tests.health.rules.made import structure_of
from tests.health.views import views_of

STEPS = (
    "Put a norm before the activation.",
    "Use a loss scaler (precision 16-mixed).",
    "Clip the norm of the gradient.",
    "Look.",
)
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
