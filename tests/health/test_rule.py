"""A health rule checks its options, can be typed back in from its repr, and says why it cannot run."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from lightning_hooks.errors import RuleError
from lightning_hooks.health.rule import HealthRule, Severity, Sign, signs_where
from tests.health.test_evidence import evidence_of
from tests.health.views import views_of


@dataclass(frozen=True, kw_only=True)
class Huge(HealthRule):
    most: float = 10.0
    family: ClassVar[str] = "gradients"
    needs: ClassVar[tuple[tuple[str, str], ...]] = (("grad", "abs_max"),)

    def check(self, evidence):
        track = evidence.track("grad", "abs_max")
        return signs_where(track, track.values > self.most, self.most, lambda value: f"reaches {value:g}")


def test_the_repr_of_a_rule_makes_the_same_rule():
    rule = Huge(most=3.0, severity=Severity.CRITICAL, patience=2)
    assert eval(repr(rule)) == rule and eval(repr(rule)).severity is Severity.CRITICAL and rule.name == "Huge"


@pytest.mark.parametrize(
    "options, says",
    [
        ({"severity": "critcal"}, r"Huge.severity must be info, warning or critical, got 'critcal' \(did you mean 'critical'"),
        ({"patience": 0}, "Huge.patience must be an integer of at least 1, got 0"),
        ({"every": True}, "Huge.every must be an integer of at least 1, got True"),
        ({"warmup": -1}, "Huge.warmup must be an integer of at least 0, got -1"),
        ({"most": float("nan")}, "Huge.most must be a number, got nan"),
    ],
)
def test_an_invalid_option_is_an_error_that_names_it(options, says):
    with pytest.raises(RuleError, match=says):
        Huge(**options)


def test_signs_are_made_at_new_measured_steps_only():
    evidence = evidence_of(views_of([("grad", "a"), ("grad", "b")], [[11, 1], [12, np.nan], [1, 13]]), Huge.needs)
    evidence.judge_after(0)
    assert list(Huge().check(evidence)) == [
        Sign("a", "grad", 1, 12.0, 10.0, "reaches 12"),
        Sign("b", "grad", 2, 13.0, 10.0, "reaches 13"),
    ]


def test_a_rule_without_its_numbers_says_which_are_missing():
    assert Huge().can_run(evidence_of(views_of([("param", "a")], [[1]]), Huge.needs)) == "no row has `grad`"
    assert Huge().can_run(evidence_of(views_of([("grad", "a")], [[1]]), Huge.needs)) is None


def test_the_message_names_the_rows():
    signs = [Sign("a", "grad", 1, 12.0, 10.0, "reaches 12")]
    assert Huge().message(["a", "b", "c"], signs) == "a, then 2 more: reaches 12."
    assert Huge().message([""], signs) == "Reaches 12."
