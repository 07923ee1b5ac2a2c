"""The table of facts by step: what is compared, in which words, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.reference.record import Names, Record, held_by, rates_of, settings_of
from lightning_hooks.health.reference.rule import IF_MEANT, Compared, GoodRuns
from lightning_hooks.health.reference.schedule import Schedule
from lightning_hooks.health.reference.timeline import Timeline
from lightning_hooks.health.rule import Severity, Symptom
from lightning_hooks.health.rules.base import no_facts, one_rank
from lightning_hooks.records.facts import StepFacts, Structure


class Comparison(Protocol):
    """One fact that is compared."""

    def differences(self, good: Known, step: int, facts: StepFacts) -> Iterator[Symptom]:
        """How the fact differs at a step from that of the good runs."""


@dataclass(frozen=True)
class Known:
    """What a fact of a step is compared with.

    Args:
        records: of the good runs that say how their steps trained.
        names: the names of the modules and parameters that both models have; None if the good runs do not say it.
        words: the good runs in words: `in the good run`.
    """

    records: Sequence[Record]
    names: frozenset[str] | None
    words: str


@dataclass(frozen=True)
class NamesCompared:
    """The modules or parameters of which something holds at a step.

    Args:
        good: their names in a good run around a step, as far as they may differ; empty if unknown.
        now: their names in this run, in the order in which they are told; None if unknown.
        new: the words for a name that no good run has; `{good}` stands for the good runs in words.
        gone: the words for a name that all good runs have and this run lacks; empty if that is no difference.
        is_of_both: whether names that only one of the models has are ignored.
    """

    good: Callable[[Record, int], Iterable[Iterable[str]]]
    now: Callable[[StepFacts], Sequence[str] | None]
    new: str
    gone: str = ""
    is_of_both: bool = True

    def differences(self, good: Known, step: int, facts: StepFacts) -> Iterator[Symptom]:
        names = self.now(facts)
        sets = [frozenset(each) for record in good.records for each in self.good(record, step)]
        if names is None or not sets:
            return
        ever, always = frozenset.union(*sets), frozenset.intersection(*sets)
        told = [(name, self.new) for name in names if name not in ever]
        told += [(name, self.gone) for name in sorted(always.difference(names)) if self.gone]
        for name, words in told:
            if not self.is_of_both or good.names is None or name in good.names:
                yield _differs(name, step, words.format(good=good.words))


@dataclass(frozen=True)
class SettingCompared:
    """A setting of the training, as text.

    Args:
        place: its place in `settings_of`.
        words: before its value.
    """

    place: int
    words: str

    def differences(self, good: Known, step: int, facts: StepFacts) -> Iterator[Symptom]:
        now = settings_of(facts)[self.place]
        values = sorted({each[self.place] for record in good.records for each in _near(record.settings, record, step)})
        if now and values and "" not in values and now not in values:
            yield _differs("", step, f"{self.words} {now}, {good.words} {' or '.join(values)}")


@dataclass(frozen=True)
class RatesCompared:
    """The learning rate and the weight decay of each parameter group.

    Where a scheduler sets the rate by a metric, the rate is not compared.
    """

    def differences(self, good: Known, step: int, facts: StepFacts) -> Iterator[Symptom]:
        follows_metric = facts.follows_metric or any(record.follows_metric for record in good.records)
        for group, (rate, decay) in rates_of(facts).items():
            if not follows_metric:
                rates = [(record, record.rates.get(group)) for record in good.records]
                yield from self._of_group("learning rate", rates, group, rate, good, step, facts)
            decays = [(record, record.decays.get(group)) for record in good.records]
            yield from self._of_group("weight decay", decays, group, decay, good, step, facts)

    def _of_group(
        self,
        what: str,
        schedules: Sequence[tuple[Record, Schedule | None]],
        group: str,
        value: float | None,
        good: Known,
        step: int,
        facts: StepFacts,
    ) -> Iterator[Symptom]:
        known = [(record, each) for record, each in schedules if each is not None]
        if value is None or not known or any(_allows(each, record, step, value) for record, each in known):
            return
        expected = known[0][1].at(step)
        number, _, part = group.partition("/")
        of = f" of group {part} of optimizer {number}" if len(rates_of(facts)) > 1 else ""
        ends = {record.last_step for record in good.records}
        text = f"the {what}{of} is {value:.4g}, {good.words} {expected:.4g} at this step"
        if facts.last_step not in ends and facts.last_step is not None and None not in ends:
            text += f"; this run is to end after {facts.last_step} steps, the good one after {max(filter(None, ends))}"
        yield Symptom("", tensor="", step=step, measured=value, threshold=expected, text=text)


def _differs(name: str, step: int, text: str) -> Symptom:
    return Symptom(name, tensor="", step=step, measured=1.0, threshold=0.0, text=text)


def _allows(schedule: Schedule, record: Record, step: int, value: float) -> bool:
    """Whether a schedule of a good run allows a value at a step or beside it; after the good run it allows all values."""
    beside = [near for near in (step - 1, step, step + 1) if record.observed.around(near) is not None]
    is_outside = record.observed.around(step) is None
    return is_outside or any(schedule.allows(record.observed, near, value) for near in beside)


def _near(timeline: Timeline[Names], record: Record, step: int) -> set[Names]:
    """The values that a good run may have had at a step or beside it: after a resume, Lightning may count one step more."""
    found: set[Names] = set()
    if timeline.values(record.observed, step):
        for near in (step - 1, step, step + 1):
            found |= timeline.values(record.observed, near)
    return found


@dataclass(frozen=True)
class FactsOfSteps:
    """Some facts, compared at each new step with those of the good runs at that step.

    Args:
        facts: what is compared, in the order in which differences of one step are told.
    """

    facts: tuple[Comparison, ...]

    def __call__(self, good: GoodRuns, evidence: Evidence) -> Iterator[Symptom]:
        known = Known(good.records, _common_names(good.reference.structure, evidence.structure), good.words)
        for step in evidence.new_steps.tolist():
            facts = evidence.facts_at(step)
            if facts is not None:
                for compared in self.facts:
                    yield from compared.differences(known, step, facts)


def _obstacle(good: GoodRuns, evidence: Evidence) -> str | None:
    return no_facts(evidence) if good.records else "the good run does not say how its steps trained"


def _obstacle_of_replicas(good: GoodRuns, evidence: Evidence) -> str | None:
    return _obstacle(good, evidence) or one_rank(evidence)


def _common_names(good: Structure | None, now: Structure | None) -> frozenset[str] | None:
    """The names of modules and parameters that both models have. `ReferenceStructure` tells which are new or missing."""
    if good is None:
        return None
    return _names_of(good) & _names_of(now or good)


def _names_of(model: Structure) -> frozenset[str]:
    return frozenset([*(each.name for each in model.modules), *(each.name for each in model.parameters)])


def _compared(
    name: str,
    *facts: Comparison,
    next_steps: tuple[str, ...] = Compared.next_steps,
    severity: Severity = Severity.WARNING,
    obstacle: Callable[[GoodRuns, Evidence], str | None] = _obstacle,
) -> Compared:
    return Compared(name, (FactsOfSteps(facts),), obstacle=obstacle, severity=severity, next_steps=next_steps)


FACTS: Final = (
    # A module trains or validates in another mode: dropout and batch norms act differently.
    _compared(
        "ReferenceModes",
        NamesCompared(
            lambda record, step: _near(record.evaluating, record, step),
            lambda facts: sorted(facts.evaluating),
            new="this module is in evaluation mode, {good} in training mode",
            gone="this module is in training mode, {good} in evaluation mode",
        ),
        NamesCompared(
            lambda record, step: _near(record.validating, record, step),
            lambda facts: None if facts.validating is None else sorted(facts.validating),
            new="in validation this module was in training mode, {good} in evaluation mode",
            gone="in validation this module was in evaluation mode, {good} in training mode",
        ),
        next_steps=(
            "Look for calls of `train()` and `eval()`: in callbacks, in `on_validation_start`, in the code that builds the "
            "module.",
            IF_MEANT,
        ),
    ),
    # A parameter is frozen or held by an optimizer, other than in the good run at the same step.
    _compared(
        "ReferenceTrained",
        NamesCompared(
            lambda record, step: _near(record.frozen, record, step),
            lambda facts: sorted(facts.frozen),
            new="this parameter is frozen; {good} it was not at this step",
            gone="this parameter is not frozen; {good} it was at this step",
        ),
        NamesCompared(
            lambda record, step: _near(record.held, record, step),
            lambda facts: held_by(facts) if facts.optimizers else None,
            new="this parameter is held by an optimizer, other than {good}",
            gone="this parameter is held by no optimizer, other than {good}",
        ),
        next_steps=("Look where `requires_grad` is set, and which parameters the optimizer is given.", IF_MEANT),
    ),
    # A learning rate or a weight decay is another than in the good run at the same step.
    _compared(
        "ReferenceSchedule",
        RatesCompared(),
        next_steps=(
            "Look at the scheduler: its interval (step or epoch), its number of steps, and what a checkpoint restores of it.",
            IF_MEANT,
        ),
    ),
    # The class of an optimizer, the precision, or the number of batches in a step is another.
    _compared(
        "ReferenceSettings",
        SettingCompared(0, "the precision is"),
        SettingCompared(1, "the batches in one step of the optimizer are"),
        SettingCompared(2, "the optimizers are"),
    ),
    # A parameter differs between ranks, which never did in the good run.
    _compared(
        "ReferenceReplicas",
        NamesCompared(
            lambda record, step: (record.apart,),
            lambda facts: facts.apart,
            new="this parameter is not the same on all ranks, as it was {good}",
            is_of_both=False,
        ),
        next_steps=(
            "Look for gradients that are not averaged: `no_sync`, a second backward, parameters that DDP is told to ignore.",
            "Resume from a checkpoint that was saved before the ranks differed.",
        ),
        severity=Severity.CRITICAL,
        obstacle=_obstacle_of_replicas,
    ),
)
"""The table of the facts that are compared at each step."""
