"""Mutators: faults with ladders. Each file has those of one subject."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.trainings.mutators import data, gradients, loss, membership, rates, weights
from benchmarks.trainings.mutators.mutator import RUNGS, Mutator, Planted, by_name

__all__ = ["MUTATORS", "RUNGS", "Mutator", "Planted"]

MUTATORS: Final[Mapping[str, Mutator]] = by_name(
    (*rates.MUTATORS, *data.MUTATORS, *loss.MUTATORS, *gradients.MUTATORS, *membership.MUTATORS, *weights.MUTATORS)
)
