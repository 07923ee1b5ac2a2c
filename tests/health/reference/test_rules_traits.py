"""What is always true of a row in a good run, and not in another one, is told with the row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lightning_hooks.health.reference.learning import learn
from tests.health.reference.made import INDEX, ROWS, compare, reference_of, run_of, said


def only(tensor: str, name: str, factor: float | None, since: int = 12):  # type: ignore[no-untyped-def]
    """Changes one row from a step on."""
    return lambda step, t, n: factor if step >= since and (t, n) == (tensor, name) else 1.0


@pytest.mark.parametrize(
    ("tensor", "row", "text"),
    [
        ("output", "two", "it does not run; in the good run it did at every step"),
        ("grad", "two.weight", "it gets no gradient; in the good run it did at every step"),
    ],
    ids=["output", "gradient"],
)
def test_a_row_that_is_missing_is_told(tensor: str, row: str, text: str) -> None:
    (finding,) = compare(reference_of(0), run_of(7, only(tensor, row, None)))
    assert (finding.rule, finding.rows, finding.first_step) == ("ReferenceFlow", (row,), 12)
    assert finding.evidence[0].text == text


def test_a_row_that_is_measured_now_is_told() -> None:
    never = only("grad", "two.weight", None, since=0)
    (finding,) = compare(reference_of(0, change=never), run_of(7))
    assert finding.rows == ("two.weight",)
    assert finding.evidence[0].text == "it gets a gradient; in the good run it did at no step"


def test_a_row_that_sometimes_runs_is_not_compared() -> None:
    def sometimes(step: int, tensor: str, name: str) -> float | None:
        return None if tensor == "output" and name == "two" and step % 3 == 0 else 1.0

    assert compare(reference_of(0, change=sometimes), run_of(7)) == []


def test_a_weight_that_stands_still_or_moves_is_told() -> None:
    found = compare(reference_of(0), run_of(7, only("update", "two.weight", 0.0)))
    (stands,) = (finding for finding in found if finding.rule == "ReferenceFlow")
    assert stands.rows == ("two.weight",)
    assert stands.evidence[0].text == "it has stood still for 3 steps; in the good run it moved at every step"
    still = only("update", "two.weight", 0.0, since=0)
    findings = compare(reference_of(0, change=still), run_of(7))
    assert findings[0].evidence[0].text == "the optimizer moves it; in the good run it stood still at every step"


def test_a_weight_that_jumps_is_told() -> None:
    findings = compare(reference_of(0), run_of(7, only("param", "two.weight", 1.2)))
    assert said(findings) == [("ReferenceWeights", "two.weight", 12)]
    assert "times what its updates explain, in the good run by" in findings[0].message


def scaled_counts(factor: float, *names: str):  # type: ignore[no-untyped-def]
    """Views in which the outputs of some modules have more elements."""
    rows = [i for i, (tensor, name) in enumerate(ROWS) if tensor == "output" and (not names or name in names)]
    for view in run_of(7):
        moments = np.array(view.moments)
        moments[rows, 0] *= factor
        yield replace(view, moments=moments)


def test_another_batch_is_one_finding_and_another_number_of_calls_names_its_module() -> None:
    batch = [each for each in compare(reference_of(0), scaled_counts(2)) if each.rule == "ReferenceCalls"]
    assert [each.message for each in batch] == ["A step has 2 times as many elements as in the good run."]
    calls = [each for each in compare(reference_of(0), scaled_counts(2, "three")) if each.rule == "ReferenceCalls"]
    assert said(calls) == [("ReferenceCalls", "three", 0)]


def rounded(*names: str):  # type: ignore[no-untyped-def]
    """Views in which the outputs of some modules have the digits of bfloat16."""
    rows = [i for i, (tensor, name) in enumerate(ROWS) if tensor == "output" and name in names]
    for view in run_of(7):
        moments = np.array(view.moments)
        bits = moments[rows][:, 4:6].astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        moments[np.ix_(rows, [4, 5])] = bits.view(np.float32)
        yield replace(view, moments=moments)


def test_another_format_of_one_layer_is_told() -> None:
    (finding,) = compare(reference_of(0), rounded("three"))
    assert (finding.rule, finding.rows, finding.first_step) == ("ReferencePrecision", ("three",), 0)
    assert "it is bfloat16 instead of float32" in finding.message
    reference = learn([("good", rounded("one", "two", "three", "four"))])
    (finding,) = compare(reference, rounded("one", "two", "four"))
    assert finding.rows == ("three",) and "it is float32 instead of bfloat16" in finding.message


def test_inputs_that_come_twice_are_told_at_the_module_that_runs_first() -> None:
    def twice():  # type: ignore[no-untyped-def]
        before = None
        for view in run_of(7):
            if view.step % 2 and before is not None:
                rows = [i for i, (tensor, _) in enumerate(ROWS) if tensor == "input"]
                moments = np.array(view.moments)
                moments[rows] = before.moments[rows]
                view = replace(view, moments=moments)
            before = view
            yield view

    assert said(compare(reference_of(0), twice())) == [("ReferenceData", "one", 1)]
    assert INDEX.names[1] == "one"


def test_a_smaller_batch_now_and_then_is_no_finding() -> None:
    def now_and_then():  # type: ignore[no-untyped-def]
        for usual, small in zip(run_of(7), scaled_counts(0.5), strict=True):
            yield small if usual.step % 3 else usual

    assert compare(reference_of(0), now_and_then()) == []
