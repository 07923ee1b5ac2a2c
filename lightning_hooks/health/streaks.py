"""Streaks: for how long the condition of a rule has held at each row, and since when it holds no longer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence, Track
from lightning_hooks.health.finding import sign_from_dict, sign_to_dict
from lightning_hooks.health.rule import HealthRule, Sign

_MOST_SIGNS: Final = 3  # signs that a streak keeps: the first and the clearest two
Place = tuple[str, str]
"""A row and a tensor."""


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
        signs: the first sign and the clearest ones.
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
    signs: tuple[Sign, ...] = ()
    least: float = -1.0

    @property
    def excess(self) -> float:
        """How far the clearest sign is from the threshold."""
        return max((sign.excess for sign in self.signs), default=0.0)

    def hit(self, sign: Sign) -> None:
        """The condition holds at one more step."""
        self.count, self.misses, self.last = self.count + 1, 0, max(self.last, sign.step)
        if len(self.signs) < _MOST_SIGNS:
            self.signs = (*self.signs, sign)
            return
        # Sort only if the new sign exceeds the threshold by more than a kept one. In a long streak most signs do not.
        excess = sign.excess
        if self.least < 0:
            self.least = min(each.excess for each in self.signs[1:])
        if excess > self.least:
            clearest = sorted((*self.signs[1:], sign), key=lambda each: (-each.excess, each.step))[: _MOST_SIGNS - 1]
            self.signs, self.least = (self.signs[0], *clearest), clearest[-1].excess

    def miss(self, step: int) -> None:
        """The row was measured and the condition does not hold."""
        if self.misses == 0:
            self.gone_since = step
        self.misses += 1

    def state(self) -> list[Any]:
        """The streak as plain values."""
        numbers = [self.first, self.last, self.count, self.misses, self.gone_since, self.is_confirmed]
        return [self.row, self.tensor, *numbers, [sign_to_dict(sign) for sign in self.signs]]

    @classmethod
    def from_state(cls, state: list[Any]) -> Streak:
        """The streak of `state`; raises ValueError or TypeError if the state is damaged."""
        row, tensor, *numbers, is_confirmed, signs = state
        first, last, count, misses, gone_since = map(int, numbers)
        kept = tuple(sign_from_dict(sign) for sign in signs)
        return cls(str(row), str(tensor), first, last, count, misses, gone_since, bool(is_confirmed), kept)


@dataclass
class Change:
    """What a look changed: streaks that have become as long as the rule's patience, and confirmed ones that have ended."""

    confirmed: list[Streak] = field(default_factory=list)
    ended: list[Streak] = field(default_factory=list)


class Streaks:
    """The streaks of one rule. Only rows at which the condition holds, or has held recently, have one.

    Args:
        rule: the rule.
    """

    def __init__(self, rule: HealthRule) -> None:
        self._rule = rule
        self._live: dict[Place, Streak] = {}

    @property
    def are_none(self) -> bool:
        """Whether the condition holds nowhere, and no finding of the rule is open."""
        return not self._live

    @property
    def is_undecided(self) -> bool:
        """Whether the condition holds somewhere, but not yet for as long as the rule's patience."""
        return any(not streak.is_confirmed for streak in self._live.values())

    def update(self, signs: Iterable[Sign], evidence: Evidence) -> Change:
        """Go through the new steps of the evidence with the signs that the rule has given at them."""
        by_place: dict[Place, dict[int, Sign]] = {}
        for sign in signs:
            steps = by_place.setdefault((sign.row, sign.tensor), {})
            if sign.step not in steps or steps[sign.step].excess < sign.excess:
                steps[sign.step] = sign
        change = Change()
        if not by_place and not self._live:
            return change
        measured = _MeasuredSteps(self._rule, evidence)
        for place in dict.fromkeys((*self._live, *by_place)):
            self._go_through(place, by_place.get(place, {}), measured, change)
        return change

    def _go_through(self, place: Place, signs: dict[int, Sign], measured: _MeasuredSteps, change: Change) -> None:
        for step in measured.of(place, signs):
            streak, sign = self._live.get(place), signs.get(step)
            if sign is not None:
                if streak is None:
                    begin = sign.step if sign.since is None else min(sign.since, sign.step)
                    streak = self._live[place] = Streak(*place, begin, sign.step)
                streak.hit(sign)
                if not streak.is_confirmed and streak.count >= self._rule.patience:
                    streak.is_confirmed = True
                    change.confirmed.append(streak)
            elif streak is not None:
                streak.miss(step)
                if not streak.is_confirmed or streak.misses >= self._rule.patience:
                    del self._live[place]
                    if streak.is_confirmed:
                        change.ended.append(streak)

    def restart(self) -> None:
        """Forget streaks that are not confirmed, because training went back to an earlier step."""
        self._live = {place: streak for place, streak in self._live.items() if streak.is_confirmed}

    def state(self) -> list[Any]:
        """The streaks as plain values."""
        return [streak.state() for streak in self._live.values()]

    def load(self, streaks: Iterable[Streak]) -> None:
        """Continue with these streaks."""
        self._live = {(streak.row, streak.tensor): streak for streak in streaks}


class _MeasuredSteps:
    """The new steps at which each row was measured: at these a condition holds, or does not hold."""

    def __init__(self, rule: HealthRule, evidence: Evidence) -> None:
        self._evidence = evidence
        self._tracks: dict[str, list[Track]] = {}
        for tensor, stat in rule.needs:
            track = evidence.track(tensor, stat)
            if track is not None:
                self._tracks.setdefault(tensor, []).append(track)
        self._columns: dict[str, Mapping[str, int]] = {}

    def of(self, place: Place, signs: Mapping[int, Sign]) -> list[int]:
        """The steps to go through for a row, ascending.

        A row is measured where all statistics of its tensor that the rule reads have a value. For a row without statistics,
        such as that of a fact, a look is one step.
        """
        row, tensor = place
        tracks = self._tracks.get(tensor, [])
        if tracks and tensor not in self._columns:
            self._columns[tensor] = {name: column for column, name in enumerate(tracks[0].names)}
        column = self._columns.get(tensor, {}).get(row)
        if column is None:
            return sorted(signs) or [self._evidence.step]
        new = tracks[0].new
        is_measured = ~np.isnan(np.stack([track.values[new, column] for track in tracks])).any(axis=0)
        steps = tracks[0].steps[new]
        begin = int(steps[0]) if len(steps) else self._evidence.step + 1
        return sorted({*steps[is_measured].tolist(), *(step for step in signs if step >= begin)})
