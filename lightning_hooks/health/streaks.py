"""Streaks: for how long the condition of a rule has held at each row, and since when it holds no longer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.finding import symptom_from_dict, symptom_to_dict
from lightning_hooks.health.rule import HealthRule, Symptom
from lightning_hooks.health.track import Track

_MOST_SYMPTOMS: Final = 3  # symptoms that a streak keeps: the first and the clearest two, among them a fact if there is one
Place = tuple[str, str]
"""A row and a tensor."""


def _rank(symptom: Symptom) -> tuple[bool, float, int]:
    """The order in which symptoms are kept: facts first, then the clearest."""
    return not symptom.is_fact, -symptom.excess, symptom.step


@dataclass(slots=True)
class Streak:
    """The condition of a rule at one row.

    Args:
        row: the name of the row.
        tensor: its tensor.
        first: the first step of the streak.
        last: the last step at which the condition held.
        count: the measured steps in a row at which it held.
        misses: the measured steps in a row, up to now, at which it did not hold.
        gone_since: the first of these steps.
        is_confirmed: whether it held for as long as the rule's patience.
        symptoms: the first symptom and the clearest ones; one of them is a fact if any symptom was.
        least: the smallest excess of the clearest ones; negative before it is needed.
    """

    row: str
    tensor: str
    first: int
    last: int
    count: int = 0
    misses: int = 0
    gone_since: int = -1
    is_confirmed: bool = False
    symptoms: tuple[Symptom, ...] = ()
    least: float = -1.0

    @property
    def place(self) -> Place:
        """The row and the tensor."""
        return self.row, self.tensor

    @property
    def excess(self) -> float:
        """How far the clearest symptom is from the threshold."""
        return max((symptom.excess for symptom in self.symptoms), default=0.0)

    def hit(self, symptom: Symptom) -> None:
        """The condition holds at one more step."""
        self.count, self.misses, self.last = self.count + 1, 0, max(self.last, symptom.step)
        if len(self.symptoms) < _MOST_SYMPTOMS:
            self.symptoms = (*self.symptoms, symptom)
            return
        if symptom.is_fact and not any(each.is_fact for each in self.symptoms):
            self.symptoms, self.least = (*self.symptoms[:-1], symptom), -1.0
            return
        # Sort only if the new symptom exceeds the threshold by more than a kept one. In a long streak most symptoms do not.
        excess = symptom.excess
        if self.least < 0:
            self.least = min(each.excess for each in self.symptoms[1:])
        if excess > self.least:
            clearest = sorted((*self.symptoms[1:], symptom), key=_rank)[: _MOST_SYMPTOMS - 1]
            self.symptoms, self.least = (self.symptoms[0], *clearest), min(each.excess for each in clearest)

    def miss(self, step: int) -> None:
        """The row was measured and the condition does not hold."""
        if self.misses == 0:
            self.gone_since = step
        self.misses += 1

    def state(self) -> list[Any]:
        """The streak as plain values."""
        numbers = [self.first, self.last, self.count, self.misses, self.gone_since, self.is_confirmed]
        return [self.row, self.tensor, *numbers, [symptom_to_dict(symptom) for symptom in self.symptoms]]

    @classmethod
    def from_state(cls, state: list[Any]) -> Streak:
        """The streak of `state`; raises ValueError or TypeError if the state is damaged."""
        row, tensor, *numbers, is_confirmed, symptoms = state
        first, last, count, misses, gone_since = map(int, numbers)
        kept = tuple(symptom_from_dict(symptom) for symptom in symptoms)
        return cls(str(row), str(tensor), first, last, count, misses, gone_since, bool(is_confirmed), kept)


@dataclass
class Change:
    """What a look changed.

    Args:
        confirmed: streaks that have become as long as the rule's patience.
        held: confirmed streaks at which the condition held again.
        over: confirmed streaks that have ended.
    """

    confirmed: list[Streak] = field(default_factory=list)
    held: list[Streak] = field(default_factory=list)
    over: list[Streak] = field(default_factory=list)


class Streaks:
    """The streaks of one rule. Only rows at which the condition holds, or has held recently, have one.

    Args:
        rule: the rule.

    Attributes:
        holds_nowhere: whether the condition holds nowhere, and no finding of the rule is open.
        is_undecided: whether the condition holds somewhere, but not yet for as long as the rule's patience.
    """

    def __init__(self, rule: HealthRule) -> None:
        self._rule = rule
        self._live: dict[Place, Streak] = {}
        self._note_state()

    def _note_state(self) -> None:
        self.holds_nowhere = not self._live
        self.is_undecided = not all(streak.is_confirmed for streak in self._live.values())

    @property
    def standing(self) -> dict[str, int]:
        """The rows at which a finding stands, each with the first step."""
        return {streak.row: streak.first for streak in self._live.values() if streak.is_confirmed}

    @property
    def standing_places(self) -> frozenset[Place]:
        """The rows at which a finding stands, each with its tensor."""
        return frozenset(place for place, streak in self._live.items() if streak.is_confirmed)

    def update(self, symptoms: Iterable[Symptom], evidence: Evidence) -> Change:
        """Go through the new steps of the evidence with the symptoms that the rule has given at them."""
        by_place: dict[Place, dict[int, Symptom]] = {}
        for symptom in symptoms:
            steps = by_place.setdefault((symptom.row, symptom.tensor), {})
            if symptom.step not in steps or steps[symptom.step].excess < symptom.excess:
                steps[symptom.step] = symptom
        change = Change()
        if not by_place and not self._live:
            return change
        measured = _MeasuredSteps(self._rule, evidence)
        for place in dict.fromkeys((*self._live, *by_place)):
            self._go_through(place, by_place.get(place, {}), measured, change)
            streak = self._live.get(place)
            if place in by_place and streak is not None and streak.is_confirmed:
                change.held.append(streak)
        self._note_state()
        return change

    def _go_through(self, place: Place, symptoms: dict[int, Symptom], measured: _MeasuredSteps, change: Change) -> None:
        for step in measured.of(place, symptoms):
            streak, symptom = self._live.get(place), symptoms.get(step)
            if symptom is not None:
                if streak is None:
                    begin = symptom.step if symptom.since is None else min(symptom.since, symptom.step)
                    streak = self._live[place] = Streak(*place, begin, symptom.step)
                streak.hit(symptom)
                if not streak.is_confirmed and streak.count >= self._rule.patience:
                    streak.is_confirmed = True
                    change.confirmed.append(streak)
            elif streak is not None:
                streak.miss(step)
                if not streak.is_confirmed or streak.misses >= self._rule.patience:
                    del self._live[place]
                    if streak.is_confirmed:
                        change.over.append(streak)

    def restart(self) -> None:
        """Forget streaks that are not confirmed, because training went back to an earlier step."""
        self._live = {place: streak for place, streak in self._live.items() if streak.is_confirmed}
        self._note_state()

    def state(self) -> list[Any]:
        """The streaks as plain values."""
        return [streak.state() for streak in self._live.values()]

    def load(self, streaks: Iterable[Streak]) -> None:
        """Continue with these streaks."""
        self._live = {streak.place: streak for streak in streaks}
        self._note_state()


class _MeasuredSteps:
    """The new steps at which each row was measured: at these a condition holds, or does not hold."""

    def __init__(self, rule: HealthRule, evidence: Evidence) -> None:
        self._evidence = evidence
        self._has_new = rule.looks_between or len(evidence.new_steps) > 0
        self._tracks: dict[str, list[Track]] = {}
        for tensor, stat in rule.needs:
            track = evidence.track(tensor, stat)
            if track is not None:
                track = track if rule.looks_between else evidence.of_rows(track)
                self._tracks.setdefault(tensor, []).append(track)
        self._columns: dict[str, Mapping[str, int]] = {}

    def of(self, place: Place, symptoms: Mapping[int, Symptom]) -> list[int]:
        """The steps to go through for a row, ascending.

        A row is measured where all statistics of its tensor that the rule reads have a value. For a row without statistics,
        such as that of a fact, a look is one step if it has new steps that the rule reads: the last look of a fit may have only
        steps between, at which nothing is known of rows.
        """
        row, tensor = place
        tracks = self._tracks.get(tensor, [])
        if tracks and tensor not in self._columns:
            self._columns[tensor] = {name: column for column, name in enumerate(tracks[0].names)}
        column = self._columns.get(tensor, {}).get(row)
        if column is None:
            return sorted(symptoms) or ([self._evidence.step] if self._has_new else [])
        new = tracks[0].new
        is_measured = ~np.isnan(np.stack([track.values[new, column] for track in tracks])).any(axis=0)
        steps = tracks[0].steps[new]
        begin = int(steps[0]) if len(steps) else self._evidence.step + 1
        return sorted({*steps[is_measured].tolist(), *(step for step in symptoms if step >= begin)})
