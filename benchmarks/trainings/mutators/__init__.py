"""Mutators: faults with ladders. Each file has those of one subject; `answers.py` says what must be said of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from benchmarks.trainings.mutators import (
    batches,
    gradients,
    inputs,
    labels,
    loop,
    loss,
    membership,
    numerics,
    optimizer,
    rates,
    schedules,
    structure,
    targets,
    weights,
)
from benchmarks.trainings.mutators.mutator import RUNGS, Mutator, Planted, by_name

__all__ = ["FILES", "MUTATORS", "RUNGS", "Mutator", "Planted"]

_FILES: Final[tuple[ModuleType, ...]] = (
    *(rates, optimizer, schedules, inputs, labels, batches),
    *(loss, gradients, membership, weights, structure, numerics, loop, targets),
)
MUTATORS: Final[Mapping[str, Mutator]] = by_name(tuple(each for file in _FILES for each in file.MUTATORS))
FILES: Final[Mapping[str, str]] = {each.name: file.__name__.rpartition(".")[2] for file in _FILES for each in file.MUTATORS}
"""The name of the file of each mutator."""
