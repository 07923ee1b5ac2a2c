"""Draws a training from a seed, and makes its case."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

from benchmarks.trainings.families import FAMILIES, Family
from benchmarks.trainings.optimizers import OPTIMIZERS, SCHEDULES, is_manual
from benchmarks.trainings.spec import Spec, randomness
from benchmarks.trainings.tricks import ANYWHERE, applied, fitting
from galleries.health.training import Case

_DECAYS: Final = (0.0, 0.0, 0.0, 1e-4, 1e-3, 0.01, 0.05)
_PRECISIONS: Final = ("32-true",) * 8 + ("bf16-mixed", "64-true")
_DROPOUTS: Final = (0.0, 0.0, 0.0, 0.1, 0.2, 0.5)
_BATCHES: Final = 480
"""The largest number of batches."""
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
    kind, shape = OPTIMIZERS[optimizer], family.draw(random)
    rate = kind.usual * family.pace * shape.get("pace", 1.0) * 10 ** random.uniform(-_SPREAD, _SPREAD)
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
        shape=tuple(shape.items()),
    )
    return _with_tricks(_possible(spec), family, random)


def _possible(spec: Spec) -> Spec:
    """The spec without what does not go together."""
    if is_manual(spec):
        spec = replace(spec, accumulate=1)
    if spec.optimizer == "lbfgs":
        # The search along a line compares losses, which must not be random and need all their digits.
        spec = replace(spec, dropout=0.0, precision="32-true" if spec.precision == "bf16-mixed" else spec.precision)
    if dict(spec.shape).get("norm") == "batch":
        spec = replace(spec, batch=max(spec.batch, 16))
    if dict(spec.shape).get("mode") == "unfreeze" or "unfrozen-first" in spec.tricks:
        # A schedule knows nothing of a group that an optimizer gets later.
        spec = replace(spec, schedule="constant")
    if spec.precision == "bf16-mixed" and "channels" in dict(spec.shape):
        # Most processors have no fast convolutions in this format.
        spec = replace(spec, steps=min(spec.steps, 160), batch=16, accumulate=1)
    if spec.family == "ctc" and spec.precision == "bf16-mixed":
        # The library of the CPU has no recurrent layer of two directions in this format.
        spec = replace(spec, precision="32-true")
    # The time of a training grows with the number of its batches.
    return replace(spec, steps=min(spec.steps, _BATCHES // spec.accumulate))


def _with_tricks(spec: Spec, family: Family, random: Random) -> Spec:
    for _ in range(random.choice([0, 0, 1, 1, 2])):
        possible = fitting(spec)
        # Few families can have one of the other tricks, so those that can are given one more often.
        others = [name for name in possible if name not in ANYWHERE] if family.tricks and random.random() < 0.7 else []
        chosen = others or [name for name in possible if name in ANYWHERE]
        if chosen:
            spec = _possible(replace(spec, tricks=(*spec.tricks, random.choice(chosen))))
    return spec


def made(spec: Spec) -> Case:
    """The fresh case of a spec, with its tricks and the options of its Trainer."""
    case = applied(FAMILIES[spec.family].make(spec), spec)
    options: dict[str, Any] = {"precision": spec.precision, "accumulate_grad_batches": spec.accumulate}
    if is_manual(spec):
        # Lightning counts the steps of all optimizers.
        options["max_steps"] = 2 * spec.steps
    return replace(case, trainer={**options, **case.trainer})
