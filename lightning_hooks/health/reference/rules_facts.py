"""Rules that compare what the host knows of a run: its model, modes, frozen parameters, optimizers and replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.reference.record import Names, Record, held_by, rates_of, settings_of
from lightning_hooks.health.reference.rule import RecordRule, ReferenceRule, new_facts
from lightning_hooks.health.reference.schedule import Schedule
from lightning_hooks.health.reference.timeline import Timeline
from lightning_hooks.health.roles import NO_STRUCTURE
from lightning_hooks.health.rule import Severity, Symptom
from lightning_hooks.records.facts import ModuleFacts, ParameterFacts, StepFacts, Structure

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ReferenceStructure(ReferenceRule):
    """A module or parameter of the model is new, missing, or another than in the good run: its class, shape, dtype, or ties."""

    def can_run(self, evidence: Evidence) -> str | None:
        """See `HealthRule`."""
        if self.reference.structure is None:
            return "the good run does not say what its model is"
        return NO_STRUCTURE if evidence.structure is None else None

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        """See `HealthRule`."""
        good, structure = self.reference.structure, evidence.structure
        if good is None or structure is None or not len(evidence.new_steps):
            return
        step = int(evidence.new_steps[0])
        if not _share_names(good, structure):
            # One sentence says more than the names of two whole models.
            text = f"no parameter has the name of one {self.good}: that is a run of another model, or all names have changed"
            yield Symptom("", tensor="", step=step, measured=1.0, threshold=0.0, text=text)
            return
        for name, text in _differences(good, structure, self.good):
            yield Symptom(name, tensor="", step=step, measured=1.0, threshold=0.0, text=text)


def _share_names(good: Structure, structure: Structure) -> bool:
    """Whether two models have a parameter in common, or none at all."""
    before, now = ({each.name for each in model.parameters} for model in (good, structure))
    return bool(before & now) or not before or not now


def _differences(good: Structure, structure: Structure, where: str) -> Iterator[tuple[str, str]]:
    yield from _compared(
        {each.name: each for each in good.parameters},
        {each.name: each for each in structure.parameters},
        lambda one, two: _parameter_differs(one, two, where),
        "parameter",
        where,
    )
    yield from _compared(
        {each.name: each for each in good.modules},
        {each.name: each for each in structure.modules},
        lambda one, two: _module_differs(one, two, where),
        "module",
        where,
    )


def _compared(
    before: Mapping[str, T], now: Mapping[str, T], differs: Callable[[T, T], str | None], kind: str, where: str
) -> Iterator[tuple[str, str]]:
    for name, each in now.items():
        if name not in before:
            yield name, f"this {kind} is new: the model {where} has none of this name"
        elif (text := differs(before[name], each)) is not None:
            yield name, text
    for name in before:
        if name not in now:
            yield name, f"the model has no {kind} of this name any more, as {where}"


def _parameter_differs(good: ParameterFacts, now: ParameterFacts, where: str) -> str | None:
    untied, tied = sorted({*good.others} - {*now.others}), sorted({*now.others} - {*good.others})
    if untied:
        return f"this parameter is not tied to {untied[0]} any more, as it was {where}"
    if tied:
        return f"this parameter is tied to {tied[0]}; {where} it was not"
    if good.shape != now.shape:
        return f"the shape of this parameter is {list(now.shape)}, {where} {list(good.shape)}"
    return None if good.dtype == now.dtype else f"the dtype of this parameter is {now.dtype}, {where} {good.dtype}"


def _module_differs(good: ModuleFacts, now: ModuleFacts, where: str) -> str | None:
    if good.type != now.type:
        return f"this module is a {now.type}, {where} a {good.type}"
    if good.drop_rate == now.drop_rate or good.drop_rate is None or now.drop_rate is None:
        return None
    return f"this module drops {100 * now.drop_rate:g} % of the elements, {where} {100 * good.drop_rate:g} %"


@dataclass(frozen=True, kw_only=True)
class ReferenceModes(RecordRule):
    """A module trains or validates in another mode than in the good run: dropout and batch norms act differently."""

    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for calls of `train()` and `eval()`: in callbacks, in `on_validation_start`, in the code that builds the module.",
        "If the change is meant, accept the finding, or make a new baseline from a run that has it.",
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        """See `HealthRule`."""
        known = {each.name for each in self.reference.structure.modules} if self.reference.structure else set()
        for step, facts in new_facts(evidence):
            for name, now in _changed(self.records(), "evaluating", step, facts.evaluating):
                if name in known or not known:
                    mode, before = ("evaluation", "training") if now else ("training", "evaluation")
                    yield Symptom(
                        name,
                        tensor="",
                        step=step,
                        measured=1.0,
                        threshold=0.0,
                        text=f"this module is in {mode} mode, {self.good} in {before} mode",
                    )
            if facts.validating is None:
                continue
            for name, now in _changed(self.records(), "validating", step, facts.validating):
                if name in known or not known:
                    mode, before = ("training", "evaluation") if now else ("evaluation", "training")
                    text = f"in validation this module was in {mode} mode, {self.good} in {before} mode"
                    yield Symptom(name, tensor="", step=step, measured=1.0, threshold=0.0, text=text)


@dataclass(frozen=True, kw_only=True)
class ReferenceTrained(RecordRule):
    """A parameter is frozen or held by an optimizer, other than in the good run at the same step."""

    next_steps: ClassVar[tuple[str, ...]] = (
        "Look where `requires_grad` is set, and which parameters the optimizer is given.",
        "If the change is meant, accept the finding, or make a new baseline from a run that has it.",
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        """See `HealthRule`."""
        known = {each.name for each in self.reference.structure.parameters} if self.reference.structure else set()
        if known and evidence.structure is not None:
            # Another rule tells which parameters the model has no more.
            known &= {each.name for each in evidence.structure.parameters}
            if not known:
                return
        for step, facts in new_facts(evidence):
            for name, now in _changed(self.records(), "frozen", step, facts.frozen):
                if name in known or not known:
                    text = "is frozen" if now else "is not frozen"
                    before = "it was not" if now else "it was"
                    yield Symptom(
                        name,
                        tensor="",
                        step=step,
                        measured=1.0,
                        threshold=0.0,
                        text=f"this parameter {text}; {self.good} {before} at this step",
                    )
            for name, now in _changed(self.records(), "held", step, held_by(facts)) if facts.optimizers else ():
                if name in known or not known:
                    text = "is held by an optimizer" if now else "is held by no optimizer"
                    yield Symptom(
                        name,
                        tensor="",
                        step=step,
                        measured=1.0,
                        threshold=0.0,
                        text=f"this parameter {text}, other than {self.good}",
                    )


def _changed(records: Sequence[Record], timeline: str, step: int, now: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """The names that are in a set now but were in none of the good runs, or the other way round; each with whether it is now.

    Args:
        records: of the good runs.
        timeline: the name of the field of records that has the sets by step.
        step: to compare at.
        now: the set of this run.
    """
    sets = [frozenset(each) for record in records for each in _near(getattr(record, timeline), record, step)]
    if not sets:
        return
    current = frozenset(now)
    for name in sorted(current.difference(*sets)):
        yield name, True
    for name in sorted(frozenset.intersection(*sets) - current):
        yield name, False


@dataclass(frozen=True, kw_only=True)
class ReferenceSchedule(RecordRule):
    """A learning rate or a weight decay is another than in the good run at the same step.

    Where a scheduler sets the rate by a metric, the rate is not compared.
    """

    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the scheduler: its interval (step or epoch), its number of steps, and what a checkpoint restores of it.",
        "If the change is meant, accept the finding, or make a new baseline from a run that has it.",
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        """See `HealthRule`."""
        records = self.records()
        for step, facts in new_facts(evidence):
            compares_rates = not (facts.follows_metric or any(record.follows_metric for record in records))
            for group, (rate, decay) in rates_of(facts).items():
                if compares_rates:
                    yield from self._compared("learning rate", [r.rates.get(group) for r in records], group, rate, step, facts)
                yield from self._compared("weight decay", [r.decays.get(group) for r in records], group, decay, step, facts)

    def _compared(
        self, what: str, schedules: Sequence[Schedule | None], group: str, value: float | None, step: int, facts: StepFacts
    ) -> Iterator[Symptom]:
        pairs = [(each, record) for each, record in zip(schedules, self.records(), strict=True) if each is not None]
        if value is None or not pairs or any(_allows(each, record, step, value) for each, record in pairs):
            return
        good = pairs[0][0].at(step)
        number, _, part = group.partition("/")
        of = f" of group {part} of optimizer {number}" if len(rates_of(facts)) > 1 else ""
        ends = {record.last_step for record in self.records()}
        text = f"the {what}{of} is {value:.4g}, {self.good} {good:.4g} at this step"
        if facts.last_step not in ends and facts.last_step is not None and None not in ends:
            text += f"; this run is to end after {facts.last_step} steps, the good one after {max(filter(None, ends))}"
        yield Symptom("", tensor="", step=step, measured=value, threshold=good, text=text)


def _allows(schedule: Schedule, record: Record, step: int, value: float) -> bool:
    """Whether a schedule of a good run allows a value at a step or beside it; after the good run it allows all values."""
    beside = [near for near in (step - 1, step, step + 1) if record.observed.around(near) is not None]
    is_outside = record.observed.around(step) is None
    return is_outside or any(schedule.allows(record.observed, near, value) for near in beside)


@dataclass(frozen=True, kw_only=True)
class ReferenceSettings(RecordRule):
    """The class of an optimizer, the precision, or the number of batches in a step is another than in the good run."""

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        """See `HealthRule`."""
        for step, facts in new_facts(evidence):
            possible = [values for record in self.records() for values in _near(record.settings, record, step)]
            for i, now in enumerate(settings_of(facts)):
                good = sorted({values[i] for values in possible})
                if now and good and "" not in good and now not in good:
                    yield Symptom(
                        "",
                        tensor="",
                        step=step,
                        measured=1.0,
                        threshold=0.0,
                        text=f"{_SETTINGS[i]} {now}, {self.good} {' or '.join(good)}",
                    )


_SETTINGS = ("the precision is", "the batches in one step of the optimizer are", "the optimizers are")


def _near(timeline: Timeline[Names], record: Record, step: int) -> set[Names]:
    """The values that a good run may have had at a step or beside it: after a resume, Lightning may count one step more."""
    found: set[Names] = set()
    if timeline.values(record.observed, step):
        for near in (step - 1, step, step + 1):
            found |= timeline.values(record.observed, near)
    return found


@dataclass(frozen=True, kw_only=True)
class ReferenceReplicas(RecordRule):
    """A parameter differs between ranks; in the good run it never did."""

    severity: Severity = Severity.CRITICAL
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for gradients that are not averaged: `no_sync`, a second backward, parameters that DDP is told to ignore.",
        "Resume from a checkpoint that was saved before the ranks differed.",
    )

    def can_run(self, evidence: Evidence) -> str | None:
        """See `HealthRule`."""
        reason = super().can_run(evidence)
        alone = evidence.facts is not None and evidence.ranks < 2 and not evidence.facts.apart
        return reason or ("there is one rank only" if alone else None)

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        """See `HealthRule`."""
        allowed = {name for record in self.records() for name in record.apart}
        for step, facts in new_facts(evidence):
            for name in facts.apart:
                if name not in allowed:
                    yield Symptom(
                        name,
                        tensor="",
                        step=step,
                        measured=1.0,
                        threshold=0.0,
                        text=f"this parameter is not the same on all ranks, as it was {self.good}",
                    )


FACT_RULES: tuple[type[ReferenceRule], ...] = (
    ReferenceStructure,
    ReferenceModes,
    ReferenceTrained,
    ReferenceSchedule,
    ReferenceSettings,
    ReferenceReplicas,
)
"""The rules on what the host knows."""
