"""Spec: everything that decides one drawn training, as plain values. What `repr` shows can be typed back in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from torch import Generator

SETTING: Final = range(0, 100_000)
"""The seeds of trainings that may set thresholds."""
REPORTING: Final = range(100_000, 1_000_000)
"""The seeds of trainings that are only reported. Nobody looks at one of them before its number is published."""


@dataclass(frozen=True)
class Spec:
    """A training.

    Args:
        family: the name of its family.
        seed: from which it was drawn, and from which its data is made.
        steps: the number of updates.
        loss: as the family calls it.
        activation: as `parts.ACTIVATIONS` calls it.
        initialisation: as `parts.INITIALISATIONS` calls it.
        optimizer: as `optimizers.OPTIMIZERS` calls it.
        rate: the learning rate.
        schedule: as `optimizers.SCHEDULES` calls it.
        weight_decay: of the optimizer.
        batch: the number of samples in a batch.
        precision: as Lightning calls it.
        accumulate: the number of batches in one update.
        dropout: the share that each dropout drops; a model with 0 has none.
        tricks: names in `tricks.TRICKS`.
        shape: what only this family draws, as pairs of a name and a number, a string or a truth value.
        repeat: the number of the repetition: another one starts from other weights and takes the samples in another order.

    Example:
        >>> spec = Spec("mlp", 3, 200, "cross-entropy", "relu", "default", "adamw", 1e-3, shape=(("width", 32),))
        >>> eval(repr(spec)) == spec, spec["width"]
        (True, 32)
    """

    family: str
    seed: int
    steps: int
    loss: str
    activation: str
    initialisation: str
    optimizer: str
    rate: float
    schedule: str = "constant"
    weight_decay: float = 0.0
    batch: int = 32
    precision: str = "32-true"
    accumulate: int = 1
    dropout: float = 0.0
    tricks: tuple[str, ...] = ()
    shape: tuple[tuple[str, Any], ...] = ()
    repeat: int = 0

    def __getitem__(self, name: str) -> Any:
        """What the family has drawn under a name."""
        return dict(self.shape)[name]

    def repeated(self, repeat: int) -> Spec:
        """A repetition of the training."""
        return replace(self, repeat=repeat)

    def shortened(self, steps: int) -> Spec:
        """The training with fewer updates, for tests."""
        return replace(self, steps=steps)

    def source(self, purpose: str, *, of_task: bool = False) -> Generator:
        """A generator of random numbers.

        Args:
            purpose: what the numbers are for; another purpose gets other numbers.
            of_task: whether all repetitions get the same numbers, as they learn the same task.
        """
        return Generator().manual_seed(seed_of(self.seed, 0 if of_task else self.repeat, purpose))


def seed_of(*parts: object) -> int:
    """A seed that depends on all parts, and is the same in each process.

    Example:
        >>> seed_of(3, "order") == seed_of(3, "order"), seed_of(3, "order") == seed_of(4, "order")
        (True, False)
    """
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big")


def randomness(seed: int) -> Random:
    """From which a spec is drawn."""
    return Random(seed_of(seed, "spec"))
