"""Numbers far outside of their bands are told: at one row by a large factor, or at most rows together."""

from __future__ import annotations

import pytest

from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.reference.rule import ReferenceRule
from lightning_hooks.health.reference.rules_numbers import NUMBERS
from tests.health.reference.made import compare, reference_of, run_of, said


@pytest.mark.parametrize(
    ("tensor", "name", "factor", "is_told"),
    [
        ("loss", "loss", 4.0, True),
        ("loss", "loss", 2.0, False),
        ("input", "one", 0.5, True),
        ("input", "three", 0.5, False),
        ("output", "two", 12.0, True),
        ("output", "two", 5.0, False),
        ("grad", "two.weight", 0.1, True),
        ("grad", "two.weight", 0.4, False),
    ],
)
def test_a_row_alone_is_told_if_it_is_far_outside(tensor: str, name: str, factor: float, is_told: bool) -> None:
    findings = compare(reference_of(0), run_of(7, lambda step, t, n: factor if (t, n) == (tensor, name) else 1.0))
    assert said(findings) == ([("ReferenceNumbers", name, 0)] if is_told else [])


def test_the_message_has_the_number_and_the_band() -> None:
    (finding,) = compare(reference_of(0), run_of(7, lambda step, t, n: 0.1 if (t, n) == ("grad", "two.weight") else 1.0))
    assert finding.message.startswith("two.weight: the norm of its grad is 0.")
    assert "that it had in the good run around this step." in finding.message
    assert finding.fingerprint == "ReferenceNumbers/two.weight"
    symptom = finding.evidence[0]
    assert symptom.measured < symptom.threshold / 5


def test_most_gradients_together_count_at_a_smaller_factor_and_take_the_loss_with_them() -> None:
    findings = compare(reference_of(0), run_of(7, lambda step, t, n: 0.4 if t in ("grad", "loss") else 1.0))
    assert [finding.rule for finding in findings] == ["ReferenceNumbers"]
    assert set(findings[0].rows) == {"loss", *(f"{name}.weight" for name in ("one", "two", "three", "four"))}


def test_a_single_step_is_no_finding() -> None:
    def spike(step: int, tensor: str, name: str) -> float | None:
        return 9.0 if step in (9, 10) and tensor in ("loss", "grad", "output") else 1.0

    assert compare(reference_of(0), run_of(7, spike)) == []


def test_a_larger_tolerance_says_less() -> None:
    for tolerance, count in ((1.0, 1), (3.0, 0)):
        rule = ReferenceRule.of(NUMBERS, reference_of(0)).with_options({"tolerance": tolerance})
        diagnosis = Diagnosis([rule], causes=())
        for view in run_of(7, lambda step, t, n: 12.0 if (t, n) == ("output", "two") else 1.0):
            diagnosis.add(view)
        diagnosis.finish()
        assert len(diagnosis.findings) == count
