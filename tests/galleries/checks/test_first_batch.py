"""Weights of a fit that checks its first batch are those of a fit that does not, bit for bit. `make gallery` tries all fits."""

from __future__ import annotations

import pytest

from galleries.checks.fits import changed_by_check, fits

NAMES = (
    *("residual-of-zero", "penalised", "gan", "momentum-target", "lora", "closure"),
    *("warm-up-from-zero", "accumulation", "bfloat16"),
)
"""Trainings with batch norms, random numbers, several optimizers, frozen parts, schedules and loops of their own."""


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_is_bit_for_bit_the_same(name: str) -> None:
    (pattern,) = (each for each in fits() if each.name == name)
    assert changed_by_check(pattern) == []
