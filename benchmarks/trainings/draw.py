"""Draws a training from a seed, and makes its case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from benchmarks.trainings.families import FAMILIES, Family
from benchmarks.trainings.optimizers import OPTIMIZERS, SCHEDULES
from benchmarks.trainings.spec import Spec, randomness
from benchmarks.trainings.tricks import applied, fitting
from galleries.health.training import Case

_DECAYS: Final = (0.0, 0.0, 0.0, 1e-4, 1e-3, 0.01, 0.05)
_PRECISIONS: Final = ("32-true",) * 8 + ("bf16-mixed", "64-true")
_DROPOUTS: Final = (0.0, 0.0, 0.0, 0.1, 0.2, 0.5)
_SPREAD: Final = 0.5
"""A rate is drawn within this many powers of ten of the usual one."""


def drawn(seed: int) -> Spec:
    """The training of a seed.

    Example:
        >>> drawn(3) == drawn(3), drawn(3) == drawn(4)
        (True, False)
    """
    random = randomness(seed)
    family = FAMILIES[random.choice(sorted(FAMILIES))]
    optimizer = random.choice(family.optimizers)
    kind = OPTIMIZERS[optimizer]
    rate = kind.usual * family.pace * 10 ** random.uniform(-_SPREAD, _SPREAD)
    decays = random.choice(_DECAYS) if kind.decays else 0.0
    spec = Spec(
        family.name,
        seed,
        steps=random.choice([120, 160, 200, 250, 300]),
        loss=random.choice(family.losses),
        activation=random.choice(family.activations),
        initialisation=random.choice(family.initialisations),
        optimizer=optimizer,
        rate=float(f"{rate:.2g}"),
        schedule=random.choice(["constant", "constant", *SCHEDULES]),
        # Coupled to the gradient, as all but AdamW have it, a decay of 0.05 outweighs most losses of a few thousand weights.
        weight_decay=decays if optimizer.startswith("adamw") else min(decays, 1e-3),
        batch=family.whole if kind.whole else random.choice(family.batches),
        precision=random.choice(_PRECISIONS),
        accumulate=1 if kind.whole else random.choice([1, 1, 1, 1, 2, 4]),
        dropout=random.choice(_DROPOUTS) if family.drops else 0.0,
        shape=tuple(family.draw(random).items()),
    )
    return _with_tricks(spec, family, random)


def _with_tricks(spec: Spec, family: Family, random: Random) -> Spec:
    for _ in range(random.choice([0, 0, 1, 1, 2])):
        possible: Sequence[str] = [
            name for name in fitting(spec) if family.tricks or name in ("clip", "clip-always", "average")
        ]
        if possible:
            spec = replace(spec, tricks=(*spec.tricks, random.choice(possible)))
    return spec


def made(spec: Spec) -> Case:
    """The fresh case of a spec, with its tricks and the options of its Trainer."""
    case = applied(FAMILIES[spec.family].make(spec), spec)
    options: Mapping[str, Any] = {"precision": spec.precision, "accumulate_grad_batches": spec.accumulate}
    return replace(case, trainer={**options, **case.trainer})
