"""Faults of schedules: rates that fall or rise when they should not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from benchmarks.trainings.mutators.mutator import Mutator, Planted, is_usual
from benchmarks.trainings.mutators.optimizer import parts_of
from benchmarks.trainings.optimizers import SCHEDULES
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

Pace = Callable[[int], float]
"""The factor of the rate at a step."""

_EARLY, _MIDDLE = 0.1, 0.5
_FALLING = ("cosine", "linear", "steps", "exponential", "warm-cosine")


def _rescheduled(case: Case, change: Callable[[Pace], Pace]) -> Planted:
    """Change the factor of a schedule; a training without one has the factor 1."""
    configure = case.module.configure_optimizers

    def configure_optimizers() -> Any:
        optimizers, schedules = parts_of(configure())
        own: Pace = schedules[0]["scheduler"].lr_lambdas[0] if schedules else lambda step: 1.0
        changed = []
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group.pop("initial_lr", group["lr"])
            changed.append({"scheduler": LambdaLR(optimizer, change(own)), "interval": "step"})
        return optimizers, changed

    case.module.configure_optimizers = configure_optimizers
    return Planted(case)


def _from(start: float) -> Callable[[Case, Spec, float], Planted]:
    """Multiply the rate by a factor from a share of the training on."""

    def plant(case: Case, spec: Spec, factor: float) -> Planted:
        onset = int(start * spec.steps)
        return _rescheduled(case, lambda own: lambda step: own(step) * (factor if step >= onset else 1.0))

    return plant


def _hurry(case: Case, spec: Spec, pace: float) -> Planted:
    return _rescheduled(case, lambda own: lambda step: own(min(int(pace * step), spec.steps)))


def _warm_up(case: Case, spec: Spec, length: float) -> Planted:
    return _rescheduled(case, lambda own: lambda step: own(step) * min((step + 1) / (length * spec.steps), 1.0))


def _has_rate(spec: Spec) -> bool:
    return is_usual(spec) and spec.schedule in SCHEDULES


MUTATORS = (
    Mutator(
        "rate-falls-early",
        "After a tenth of the training, the rate falls to a fraction of what it was.",
        (0.1, 0.03, 0.01, 1e-3, 0.0),
        plant=_from(_EARLY),
        fits=_has_rate,
        onset=_EARLY,
    ),
    Mutator(
        "rate-rises-late",
        "After half of the training, the rate rises to a multiple of what it was.",
        (5, 20, 100, 1e3, 1e4),
        plant=_from(_MIDDLE),
        fits=_has_rate,
        onset=_MIDDLE,
    ),
    Mutator(
        "schedule-too-fast",
        "A schedule that falls goes a multiple faster, as one made for epochs that is advanced each batch.",
        (2, 5, 12, 40, 1000),
        plant=_hurry,
        fits=lambda spec: _has_rate(spec) and spec.schedule in _FALLING,
    ),
    Mutator(
        "warm-up-endless",
        "The rate rises over a multiple of the steps that the training takes.",
        (1, 5, 30, 300, 1e4),
        plant=_warm_up,
        fits=_has_rate,
    ),
)
