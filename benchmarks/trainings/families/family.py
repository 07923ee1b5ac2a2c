"""Family: what all trainings of one kind have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from lightning.pytorch import LightningModule

from benchmarks.trainings.optimizers import OPTIMIZERS
from benchmarks.trainings.parts import ACTIVATIONS, INITIALISATIONS
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

ANY: Final = tuple(name for name, kind in OPTIMIZERS.items() if not (kind.whole or kind.special))
"""The optimizers that learn from small batches."""


@dataclass(frozen=True)
class Family:
    """A kind of training.

    Args:
        name: in kebab case.
        bar: the measure from which a training is healthy. It is fixed before any rule runs.
        draw: what only this family draws.
        make: the case of a spec. It seeds everything itself.
        measure: of a finished module, on fresh data; larger is better.
        losses: the names from which the loss is drawn.
        pace: a factor of the usual rate of an optimizer.
        optimizers: the names from which the optimizer is drawn.
        activations: likewise.
        initialisations: likewise.
        batches: the sizes of batches.
        whole: the size for an optimizer that takes all samples at once.
        drops: whether its models take a dropout.
        tricks: whether tricks that change layers may be drawn.
    """

    name: str
    bar: float
    draw: Callable[[Random], Mapping[str, Any]]
    make: Callable[[Spec], Case]
    measure: Callable[[LightningModule, Spec], float]
    losses: tuple[str, ...]
    pace: float = 1.0
    optimizers: tuple[str, ...] = ANY
    activations: tuple[str, ...] = tuple(ACTIVATIONS)
    initialisations: tuple[str, ...] = tuple(INITIALISATIONS)
    batches: tuple[int, ...] = (16, 32, 64, 128)
    whole: int = 0
    drops: bool = True
    tricks: bool = True
