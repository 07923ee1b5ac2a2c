"""A changed fact and the numbers that follow from it are one cause; numbers alone and facts alone have none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.reference.causes import CAUSES_WITH_REFERENCE
from lightning_hooks.health.reference.rules import reference_rules
from tests.health.reference.made import FACTS, reference_of, run_of, same


def loud(step: int, tensor: str, name: str) -> float | None:
    return 12.0 if tensor == "output" else 1.0


@pytest.mark.parametrize(
    ("change", "frozen", "names"),
    [(loud, ("two.weight",), ["TrainingChanged"]), (loud, (), []), (same, ("two.weight",), [])],
    ids=["both", "numbers", "fact"],
)
def test_a_fact_and_numbers_are_one_cause(change: object, frozen: tuple[str, ...], names: list[str]) -> None:
    diagnosis = Diagnosis(reference_rules(reference_of(0)), causes=CAUSES_WITH_REFERENCE)
    for view in run_of(7, change, facts=lambda step: replace(FACTS, frozen=frozen)):  # type: ignore[arg-type]
        diagnosis.add(view)
    diagnosis.finish()
    assert [cause.name for cause in diagnosis.causes] == names
    assert len(diagnosis.findings) == (2 if names else 1)
    for cause in diagnosis.causes:
        assert cause.findings == ("ReferenceNumbers/*", "ReferenceTrained/two.weight") and cause.confidence == "likely"
        assert "since step 0" in cause.message
