"""Record: how one good run trained, as its host knows it: modes, frozen parameters, optimizers and their rates."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hooks.health.reference.observed import Observed
from lightning_hooks.health.reference.schedule import Schedule
from lightning_hooks.health.reference.timeline import Timeline
from lightning_hooks.records.facts import StepFacts

Names = tuple[str, ...]


@dataclass
class Record:
    """How one good run trained.

    Args:
        name: of the run, for messages.
        observed: its watched steps.
        frozen: the frozen parameters by step.
        evaluating: the modules in evaluation mode by step.
        held: the parameters that an optimizer holds, by step.
        validating: the modules that were in training mode in the last validation, by step; without changes if there was none.
        settings: the precision, the batches in a step, and the classes of the optimizers, as texts by step.
        rates: the learning rate by step, by optimizer and group: `0/1`.
        decays: likewise the weight decay.
        apart: the parameters that ever differed between ranks.
        follows_metric: whether a scheduler sets a learning rate by a metric, so that it is not the same in every run.
        last_step: as of `StepFacts`.
        unseen: the kinds of sightings that were looked for at some step and seen at none.
    """

    name: str
    observed: Observed
    frozen: Timeline[Names]
    evaluating: Timeline[Names]
    held: Timeline[Names]
    validating: Timeline[Names]
    settings: Timeline[Names]
    rates: dict[str, Schedule]
    decays: dict[str, Schedule]
    apart: Names
    follows_metric: bool
    last_step: int | None
    unseen: Names = ()


def settings_of(facts: StepFacts) -> Names:
    """The precision, the batches in a step, and the classes of the optimizers, as texts; empty if unknown."""
    accumulate = "" if facts.accumulate is None else str(facts.accumulate)
    return facts.precision or "", accumulate, ", ".join(each.type for each in facts.optimizers)


def held_by(facts: StepFacts) -> Names:
    """The names of the parameters that an optimizer holds, sorted."""
    return tuple(sorted({name for each in facts.optimizers for group in each.groups for name in group.params}))


def rates_of(facts: StepFacts) -> dict[str, tuple[float | None, float | None]]:
    """The learning rate and the weight decay of each parameter group, by the numbers of optimizer and group."""
    return {
        f"{i}/{j}": (group.lr, group.weight_decay)
        for i, optimizer in enumerate(facts.optimizers)
        for j, group in enumerate(optimizer.groups)
    }


class RecordLearner:
    """Learns the record of one run, step by step.

    Args:
        name: of the run.
    """

    def __init__(self, name: str) -> None:
        self._record = Record(
            name,
            observed=Observed(),
            frozen=Timeline(),
            evaluating=Timeline(),
            held=Timeline(),
            validating=Timeline(),
            settings=Timeline(),
            rates={},
            decays={},
            apart=(),
            follows_metric=False,
            last_step=None,
        )
        self._steps: list[int] = []
        self._looked_for: set[str] = set()
        self._seen: set[str] = set()
        self._rates: tuple[dict[str, list[tuple[int, float]]], dict[str, list[tuple[int, float]]]] = ({}, {})
        self._last: StepFacts | None = None
        self._last_rates: dict[str, tuple[float | None, float | None]] = {}

    def add(self, step: int, facts: StepFacts | None) -> None:
        """Add a step, and how it trained; None if unknown."""
        self._steps.append(step)
        if facts is None:
            return
        if facts is not self._last:
            self._last, self._last_rates = facts, rates_of(facts)
            self._add_names(step, facts)
        for group, numbers in self._last_rates.items():
            for known, number in zip(self._rates, numbers, strict=True):
                if number is not None:
                    known.setdefault(group, []).append((step, number))

    def _add_names(self, step: int, facts: StepFacts) -> None:
        record = self._record
        record.frozen.add(step, tuple(sorted(facts.frozen)))
        record.evaluating.add(step, tuple(sorted(facts.evaluating)))
        record.held.add(step, held_by(facts))
        if facts.validating is not None:
            record.validating.add(step, tuple(sorted(facts.validating)))
        record.settings.add(step, settings_of(facts))
        record.apart = tuple(sorted({*record.apart, *facts.apart}))
        record.follows_metric = record.follows_metric or facts.follows_metric
        record.last_step = facts.last_step
        self._looked_for.update(facts.looked_for)
        self._seen.update(each.kind for each in facts.sightings)

    def record(self) -> Record:
        """The record of the run, after all views were added."""
        self._record.observed = Observed.of(self._steps)
        self._record.unseen = tuple(sorted(self._looked_for - self._seen))
        for schedules, known in zip((self._record.rates, self._record.decays), self._rates, strict=True):
            schedules.update({group: Schedule.of(*zip(*numbers, strict=True)) for group, numbers in known.items()})
        return self._record
