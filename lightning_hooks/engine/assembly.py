"""Assembles a run from contributions: one plan, one table, one observer and one producer for each stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lightning_hooks.engine.participants.actions import gradient_of
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.engine.watching.reading import Reading
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.plan.joined import join
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import Row
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.records.facts import StepFacts, Structure

TRAIN = "train"
Reader = Callable[[Observer, Share], Participant]
"""Makes a participant that reads the rows of a share while a step is under way."""


@dataclass
class Contribution:
    """What one owner, such as a callback, brings into a run. The order of contributions is that of the owners.

    Args:
        owner: its class, for messages.
        label: how error messages name it; empty if they need no name.
        plans: what it watches, by stage.
        on_error: what an error of its share does: `raise` or `warn`.
        publisher: passes the views of its rows to its consumers; None if it has none.
        leads: by stage, whether its views have the global numbers; True for a stage that is not named.
        names_modules: whether a module that is not called is a surprise, of which a warning tells.
        reader: reads the rows of training while a step is under way; None if nothing does.
        participants: those that change tensors, call hooks of the user, or capture.
        lookouts: those that look at the code around the model.
        may_change_gradients: whether it may change any gradient before the step of an optimizer, as callbacks of others may.
        others: more of the same owner, each with a plan and an answer to errors of its own. They follow this one.
    """

    owner: str = ""
    label: str = ""
    plans: Mapping[str, Plan] = field(default_factory=dict)
    on_error: str = "raise"
    publisher: Publisher | None = None
    leads: Mapping[str, bool] = field(default_factory=dict)
    names_modules: bool = True
    reader: Reader | None = None
    participants: Sequence[Participant] = ()
    lookouts: Sequence[Lookout] = ()
    may_change_gradients: bool = False
    others: Sequence[Contribution] = ()


@dataclass
class Assembled:
    """What one contribution has in an assembly.

    Args:
        participants: those that join the run in its turn.
        shares: of the tables, by stage.
    """

    participants: list[Participant] = field(default_factory=list)
    shares: dict[str, Share] = field(default_factory=dict)


@dataclass
class Assembly:
    """A run that was assembled.

    Args:
        producers: by stage.
        assembled: for each contribution.
        lookouts: of all contributions.
    """

    producers: dict[str, Producer] = field(default_factory=dict)
    assembled: list[Assembled] = field(default_factory=list)
    lookouts: list[Lookout] = field(default_factory=list)

    @property
    def observers(self) -> list[Observer]:
        """The observer of each stage. They join the run before all other participants."""
        return [producer.observer for producer in self.producers.values()]


class _Turns:
    """Counts the changes of each tensor that run before an owner."""

    def __init__(self) -> None:
        self._changes: Counter[tuple[int, str]] = Counter()
        self._of_gradients = 0

    def add(self, contribution: Contribution) -> None:
        """Count the changes of a contribution."""
        self._changes.update({each for participant in contribution.participants for each in participant.changes()})
        self._of_gradients += contribution.may_change_gradients

    def now(self) -> Callable[[Row], int]:
        """The turns of an owner that comes now."""
        return partial(_turn_of, Counter(self._changes), self._of_gradients)


def _turn_of(changes: Mapping[tuple[int, str], int], of_gradients: int, row: Row) -> int:
    tensor = gradient_of(row.kind)[0]
    count = changes.get((id(row.target.value), tensor), 0)
    return count + of_gradients if row.kind == "grad" else count


def assemble(
    contributions: Sequence[Contribution],
    *,
    device: Any = "cpu",
    alone: bool = False,
    facts: Callable[[], StepFacts] | None = None,
    structure: Structure | None = None,
) -> Assembly:
    """Assemble a run.

    Args:
        contributions: in the order of their owners.
        device: of the model.
        alone: whether this process is the only one, even if a process group exists.
        facts: returns the facts of the training step that ends; None for views without facts.
        structure: of the model; None for views without it.
    """
    every = [each for given in contributions for each in (given, *given.others)]
    lookouts = [lookout for each in every for lookout in each.lookouts]
    assembly, assembled = Assembly(lookouts=lookouts), [Assembled() for _ in every]
    turns = _turns_of(every)
    for stage in dict.fromkeys(stage for each in every for stage in each.plans):
        watching = [position for position, each in enumerate(every) if stage in each.plans]
        plan, parts = join([every[i].plans[stage] for i in watching], [turns[i] for i in watching])
        shares = []
        for position, part in zip(watching, parts, strict=True):
            given = every[position]
            share = Share(
                part,
                owner=given.owner or "StatsMonitor",
                on_error=given.on_error,
                label=given.label,
                publisher=given.publisher,
                writes_global=given.leads.get(stage, True),
            )
            assembled[position].shares[stage] = share
            shares.append(share)
        # Nothing is exchanged for readers, which look at what their own rank has measured.
        is_alone = alone or all(share.publisher is None for share in shares)
        observer = Observer(plan, shares, stage, device=device, alone=is_alone)
        assembly.producers[stage] = Producer(observer, facts=facts if stage == TRAIN else None, structure=structure)
    for given, made in zip(every, assembled, strict=True):
        made.participants += _participants_of(given, made, assembly.producers)
    parts_of_every = iter(assembled)
    for given in contributions:
        own = next(parts_of_every)
        own.participants += [participant for _ in given.others for participant in next(parts_of_every).participants]
        assembly.assembled.append(own)
    return assembly


def _turns_of(contributions: Iterable[Contribution]) -> list[Callable[[Row], int]]:
    turns, counting = [], _Turns()
    for each in contributions:
        turns.append(counting.now())
        counting.add(each)
    return turns


def _participants_of(given: Contribution, made: Assembled, producers: Mapping[str, Producer]) -> Iterable[Participant]:
    for stage, share in made.shares.items():
        yield Reading(producers[stage].observer, share, names_modules=given.names_modules)
    if given.reader is not None and TRAIN in made.shares:
        reader = given.reader(producers[TRAIN].observer, made.shares[TRAIN])
        producers[TRAIN].before_publishing.append(reader.before_publishing)
        yield reader
    yield from given.lookouts
    yield from given.participants
