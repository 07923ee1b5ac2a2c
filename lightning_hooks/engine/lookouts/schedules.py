"""Compares the schedules of a learning rate with the fit that they are for, before its first step."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import ClassVar, Final

from lightning_hooks.engine.lookouts.planned import Planned
from lightning_hooks.engine.lookouts.schedule_shape import Factor, at, end_of, factor_of, factors, made_for
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.records.facts import Sighting

_NEAR: Final = 0.02
"""The share by which the length of a schedule may differ from the number of steps that it was made from, or one an epoch."""
_FEW: Final = 4
"""A schedule that is advanced less often than one in so many of its advances is at another pace, not a little short."""
_GONE: Final = 1e-8
"""The factor of a rate that moves no weight any more."""
_LEFT: Final = 1e-4
"""The least factor with which a schedule may end on purpose."""
_LOW: Final = 0.1
"""The share of the largest rate below which a schedule has fallen."""
_EARLY: Final = 0.1
"""The share of the fit in which a schedule falls early."""
_REACHED: Final = 0.2
"""The share of the rate that a schedule was made to reach, below which the warm-up outlasts the fit."""
_DOUBLINGS: Final = 14
"""How often the length of the fit is doubled to see what a schedule reaches later."""
_RISES: Final = 1.01
"""The least factor between the last two of these rates at which the schedule is still warming up."""


class ScheduleLookout(Lookout):
    """Compares the length of each schedule that a Trainer advances with the advances that it will make.

    A scheduler is neither advanced nor changed: its rates are computed from its numbers. A function of the user is called if it
    only reads, and the generators of random numbers are given back what it may have drawn.
    """

    kinds: ClassVar[tuple[str, ...]] = ("schedule-pace", "schedule-early", "warm-up-endless")

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._seen: tuple[Sighting, ...] | None = None

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return None

    def sightings(self) -> tuple[Sighting, ...]:
        if self._seen is None:
            self._seen = tuple(each for plan in self._around.planned() for each in seen_of(plan))
        return self._seen


def seen_of(plan: Planned) -> Iterator[Sighting]:
    """What is to be said of one schedule: one thing at most."""
    name, factor = type(plan.scheduler).__name__, factor_of(plan.scheduler)
    for text in (_raises(name, plan), _of_steps(name, plan, factor), _of_epochs(name, plan, factor)):
        if text:
            yield Sighting("schedule-pace", text)
            return
    if factor is None or plan.advances < 2:
        return
    for kind, text in (("schedule-early", _ends_early(name, plan, factor)), ("warm-up-endless", _outlasts(name, plan, factor))):
        if text:
            yield Sighting(kind, text, is_fact=False)
            return


def _raises(name: str, plan: Planned) -> str:
    """Of a scheduler that raises an error after its last advance."""
    length = made_for(plan.scheduler) if name == "OneCycleLR" else None
    if length is None or plan.advances <= length:
        return ""
    return f"{name} was made for {length} advances and raises an error after them; this fit makes {plan.advances}"


def _of_steps(name: str, plan: Planned, factor: Factor | None) -> str:
    """Of a schedule that counts steps, or batches, and is advanced once an epoch."""
    if not plan.is_of_epochs or plan.steps < _FEW * max(plan.advances, 1):
        return ""
    for number, what in ((plan.steps, "steps"), (plan.steps * plan.batches, "batches")):
        length = made_for(plan.scheduler)
        if length is None and factor is not None:
            length = end_of(factor, 2 * number)
        if length is not None and abs(length - number) <= max(_NEAR * number, plan.advances):
            return (
                f"{name} ends after {length} advances, which is the number of {what} of this fit, but it is advanced once an "
                f"epoch, {_times(plan.advances)}"
            )
    return ""


def _of_epochs(name: str, plan: Planned, factor: Factor | None) -> str:
    """Of a schedule that counts epochs and is advanced after each step."""
    epochs = plan.epochs
    if plan.is_of_epochs or epochs is None or epochs < 2 or plan.advances < _FEW * epochs:
        return ""
    length = made_for(plan.scheduler)
    if length is None and factor is not None:
        length = end_of(factor, 2 * epochs)
    pace = f"it is advanced after each step, {_times(plan.advances)}"
    if length == epochs:
        return f"{name} ends after {length} advances, which is the number of epochs of this fit, but {pace}"
    if factor is None:
        return ""
    once, begin = at(factor, [epochs]).get(epochs, 0.0), max(factors(factor, epochs).values(), default=0.0)
    middle = at(factor, [plan.advances // 2]).get(plan.advances // 2, begin)
    if not (middle < _GONE * begin and once >= _LEFT * begin > 0):
        return ""
    return (
        f"{name} multiplies the rate by {_shown(middle / begin)} within half of this fit, because {pace}; with one advance an "
        f"epoch it would end at {once / begin:.2g} of the rate"
    )


def _ends_early(name: str, plan: Planned, factor: Factor) -> str:
    seen = factors(factor, plan.advances)
    largest = max(seen.values(), default=0.0)
    last = max((place for place, value in seen.items() if value > _LOW * largest), default=0)
    if largest <= 0 or last >= _EARLY * plan.advances or len(seen) < 2:
        return ""
    end = min(value for place, value in seen.items() if place >= last) / largest
    return (
        f"{name} has the rate above a tenth of its largest in the first {last + 1} of the {plan.advances} advances of this "
        f"fit, and then goes down to {_shown(end)} of it"
    )


def _outlasts(name: str, plan: Planned, factor: Factor) -> str:
    reached = max(factors(factor, plan.advances).values(), default=0.0)
    later = at(factor, [plan.advances * 2**times for times in range(1, _DOUBLINGS + 1)])
    most = max(later.values(), default=0.0)
    if reached >= _REACHED * most:
        return ""
    share, more, levels = _shown(reached / most), "", [*later.values()]
    if len(levels) > 1 and levels[-1] > _RISES * levels[-2]:
        share, more = f"less than {share}", f", since it would still rise after {max(later)} advances"
    return (
        f"{name} still warms up when this fit ends, after {plan.advances} advances: the rate reaches {share} of what it would "
        f"reach later{more}"
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _shown(share: float) -> str:
    return "0" if share == 0 else f"{share:.2g}"


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (ScheduleLookout,)
"""The lookouts of this file."""
