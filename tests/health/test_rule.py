"""A health rule checks its options, can be typed back in from its repr, and says why it cannot run."""

import numpy as np
import pytest
from torch import nn
from torch.nn.utils import prune

from lightning_hooks.errors import RuleError
from lightning_hooks.health.row_names import shown_rows
from lightning_hooks.health.rule import HealthRule, Severity, Symptom
from lightning_hooks.health.rules.nonfinite import NonFinite
from tests.health.rules_for_tests import Huge
from tests.health.test_evidence import evidence_of
from tests.health.views import views_of


def test_the_repr_of_a_rule_makes_the_same_rule():
    rule = Huge(most=3.0, severity=Severity.CRITICAL, patience=2)
    assert eval(repr(rule)) == rule and eval(repr(rule)).severity is Severity.CRITICAL and rule.name == "Huge"


@pytest.mark.parametrize(
    "options, says",
    [
        ({"severity": "critcal"}, r"Huge.severity must be info, warning or critical, got 'critcal' \(did you mean 'critical'"),
        ({"patience": 0}, "Huge.patience must be an integer of at least 1, got 0"),
        ({"every_n_steps": True}, "Huge.every_n_steps must be an integer of at least 1, got True"),
        ({"warmup": -1}, "Huge.warmup must be an integer of at least 0, got -1"),
        ({"most": float("nan")}, "Huge.most must be a number, got nan"),
    ],
)
def test_an_invalid_option_is_an_error_that_names_it(options, says):
    with pytest.raises(RuleError, match=says):
        Huge(**options)


def test_symptoms_are_made_at_new_measured_steps_only():
    evidence = evidence_of(views_of([("grad", "a"), ("grad", "b")], [[11, 1], [12, np.nan], [1, 13]]), Huge.needs)
    evidence.judge_after(0)
    assert list(Huge().check(evidence)) == [
        Symptom("a", tensor="grad", step=1, measured=12.0, threshold=10.0, text="gradient reaches 12"),
        Symptom("b", tensor="grad", step=2, measured=13.0, threshold=10.0, text="gradient reaches 13"),
    ]


def test_a_rule_without_its_numbers_says_which_are_missing():
    assert Huge().can_run(evidence_of(views_of([("param", "a")], [[1]]), Huge.needs)) == "no row has `grad`"
    assert Huge().can_run(evidence_of(views_of([("grad", "a")], [[1]]), Huge.needs)) is None


def test_the_message_names_the_rows():
    symptoms = [Symptom("a", tensor="grad", step=1, measured=12.0, threshold=10.0, text="gradient reaches 12")]
    assert Huge().message(["a", "b", "c"], symptoms) == "a, then 2 more: gradient reaches 12."
    assert Huge().message([""], symptoms) == "Gradient reaches 12."


def test_the_loss_is_named_among_rows_of_modules_and_parameters():
    loss = Symptom("", tensor="loss", step=1, measured=1.0, threshold=0.0, text="the loss is not finite")
    assert NonFinite().message(["", "a.weight", "b"], [loss]) == "The loss, then 2 more: the loss is not finite."
    assert shown_rows(["a", ""]) == "a, then 1 more" and shown_rows([""]) == ""


@pytest.mark.parametrize(
    "make",
    [
        lambda layer: nn.utils.parametrizations.weight_norm(layer),
        lambda layer: nn.utils.parametrizations.spectral_norm(layer),
        lambda layer: nn.utils.spectral_norm(layer),
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ],
    ids=["weight norm", "spectral norm", "old spectral norm", "pruning"],
)
def test_the_parts_of_a_weight_are_shown_as_the_weight_that_its_user_wrote(make):
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for layer in layers:
        make(layer)
    names = [name for name, _ in layers.named_parameters() if "bias" not in name]
    assert shown_rows(names) == "0.weight, then 1 more" and shown_rows(names[: len(names) // 2]) == "0.weight"


def test_a_rule_needs_a_family_and_a_check():
    with pytest.raises(RuleError, match="Odd.family must be one of facts, loss, .* got 'odd'"):
        type("Odd", (HealthRule,), {"family": "odd"})
    with pytest.raises(NotImplementedError, match="HealthRule has no check"):
        HealthRule().check(evidence_of([]))


@pytest.mark.parametrize(
    "needs, says",
    [
        (("grad", "norm"), r"Odd.needs must be a tuple of pairs \(tensor, statistic\), got \('grad', 'norm'\)"),
        ("grad", r"Odd.needs must be a tuple of pairs \(tensor, statistic\), got 'grad'"),
        ((("grad", 3),), r"Odd.needs must be a tuple of pairs"),
        ((("grad", "nrm"),), r"Odd.needs: unknown statistic 'nrm' \(did you mean 'norm'"),
        ((("grad", "ratio"),), "Odd.needs: 'ratio' is a statistic of 'update'; the rule watches grad"),
        ((("grad", "dead_units"),), "Odd.needs: 'dead_units' is a statistic of modules' tensors; the rule watches grad"),
    ],
)
def test_needs_that_nothing_can_measure_are_refused_when_the_class_is_made(needs, says):
    with pytest.raises(RuleError, match=f"^{says}"):
        type("Odd", (HealthRule,), {"needs": needs})


def test_excess_is_the_distance_from_the_threshold_on_either_side():
    excess = [
        Symptom("", tensor="", step=0, measured=measured, threshold=10.0, text="").excess
        for measured in (10.0, 100.0, 1.0, 0.0, float("inf"))
    ]
    assert excess == pytest.approx([0, 2.302585, 2.302585, float("inf"), float("inf")])
    assert Symptom("", tensor="", step=0, measured=float("nan"), threshold=10.0, text="").excess == 0
