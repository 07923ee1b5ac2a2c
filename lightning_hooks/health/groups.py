"""Groups: rows at which the condition of one rule began at about the same time become one finding."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from lightning_hooks.health.finding import EventKind, Finding
from lightning_hooks.health.given import Given
from lightning_hooks.health.rule import HealthRule, Symptom
from lightning_hooks.health.streaks import Streak

TOGETHER: Final = 20
"""Rows whose streaks begin within so many steps of the first one of a finding belong to the finding."""
_MOST_SYMPTOMS: Final = 5  # symptoms that a finding quotes as its evidence


class Group:
    """The rows of one finding.

    Args:
        rule: the name of the rule.
        number: of the finding in its run.
    """

    def __init__(self, rule: str, number: int) -> None:
        self.rule, self.number = rule, number
        self.members: dict[str, Streak] = {}
        self.ended: dict[str, int] = {}

    @property
    def first(self) -> int:
        """The step at which the earliest row began."""
        return min(streak.first for streak in self.members.values())

    @property
    def is_over(self) -> int | None:
        """The step from which the condition holds at no row; None while it holds at one."""
        return max(self.ended.values()) if len(self.ended) == len(self.members) else None

    def add(self, streak: Streak) -> None:
        """Add a row, or one whose condition holds again."""
        before = self.members.get(streak.row)
        if before is not None and before is not streak:
            streak.first = min(streak.first, before.first)
        self.members[streak.row] = streak
        self.ended.pop(streak.row, None)

    def end(self, streak: Streak) -> None:
        """The condition holds no longer at a row."""
        if self.members.get(streak.row) is streak:
            self.ended[streak.row] = streak.gone_since

    def finding(self, rule: HealthRule, cause: str | None = None) -> Finding:
        """The finding as it stands."""
        streaks = sorted(self.members.values(), key=_by_begin)
        rows = tuple(streak.row for streak in streaks)
        symptoms = sorted(
            (symptom for streak in streaks for symptom in streak.symptoms), key=lambda s: (-s.excess, s.step, s.row)
        )
        # Quote the first row first, because the message begins with its name.
        symptoms.sort(key=lambda symptom: symptom.row != rows[0])
        evidence = tuple(symptoms[:1]) + tuple(_one_of_each_row(symptoms[1:], rows[0]))[: _MOST_SYMPTOMS - 1]
        return Finding(
            rule.name,
            rows=rows,
            tensor=streaks[0].tensor,
            first_step=streaks[0].first,
            last_step=max(streak.last for streak in streaks),
            severity=rule.severity,
            evidence=evidence,
            message=_message(rule, rows, evidence),
            next_steps=rule.next_steps,
            source=rule.source,
            cause=cause,
            is_over=self.is_over,
            number=self.number,
        )

    def state(self) -> dict[str, Any]:
        """The group as plain values."""
        members = [streak.state() for streak in self.members.values()]
        return {"rule": self.rule, "number": self.number, "members": members, "ended": dict(self.ended)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Group:
        """The group of `state`; raises KeyError, ValueError or TypeError if the state is damaged."""
        group = cls(str(state["rule"]), int(state["number"]))
        for each in state["members"]:
            streak = Streak.from_state(each)
            group.members[streak.row] = streak
        group.ended = {str(row): int(step) for row, step in dict(state["ended"]).items()}
        if not group.members or not group.ended.keys() <= group.members.keys():
            raise ValueError(f"a finding of {group.rule} has no rows, or ends at rows that it does not have")
        return group


def _message(rule: HealthRule, rows: tuple[str, ...], symptoms: tuple[Symptom, ...]) -> str:
    try:
        return str(rule.message(rows, symptoms))
    # message() may be a user's code. If it raises, fall back to the default message: the symptoms are right all the same.
    except Exception:
        return HealthRule.message(rule, rows, symptoms)


def _by_begin(streak: Streak) -> tuple[int, float, str]:
    return streak.first, -streak.excess, streak.row


def _one_of_each_row(symptoms: Iterable[Symptom], but: str) -> list[Symptom]:
    first: dict[str, Symptom] = {}
    for symptom in symptoms:
        if symptom.row != but:
            first.setdefault(symptom.row, symptom)
    return list(first.values())


class Groups:
    """All findings of a run so far."""

    def __init__(self) -> None:
        self.groups: list[Group | Given] = []

    @property
    def _of_rules(self) -> list[Group]:
        return [group for group in self.groups if isinstance(group, Group)]

    def findings(self, rules: Mapping[str, HealthRule], causes: Mapping[int, str]) -> list[Finding]:
        """The findings of these rules, and those that were given.

        Args:
            rules: by name.
            causes: the names of causes by the numbers of their findings.
        """
        found = []
        for group in self.groups:
            cause = causes.get(group.number)
            if isinstance(group, Given):
                found.append(group.finding(cause))
            elif group.rule in rules:
                found.append(group.finding(rules[group.rule], cause))
        return found

    def give(self, findings: Iterable[Finding], judged: Collection[str], step: int) -> dict[int, EventKind]:
        """Add what another instrument finds; returns what happened to each of its findings, by its number.

        Args:
            findings: all that it finds now.
            judged: the names of its checks that looked; if such a check had a finding that it does not have now, that is over.
            step: the step of its look.
        """
        changed: dict[int, EventKind] = {}
        known = {group.fingerprint: group for group in self.groups if isinstance(group, Given)}
        for finding in findings:
            before = known.pop(finding.fingerprint, None)
            if before is None:
                self.groups.append(Given(replace(finding, number=len(self.groups) + 1)))
                changed[len(self.groups)] = "new"
                continue
            if before.is_over is not None:
                changed[before.number] = "again"
            before.see(finding)
        for gone in known.values():
            if gone.rule in judged and gone.is_over is None:
                gone.end(step)
                changed[gone.number] = "over"
        return changed

    def confirm(self, rule: str, streaks: Iterable[Streak]) -> dict[int, EventKind]:
        """Put streaks into groups; returns what happened to each group, by its number."""
        changed: dict[int, EventKind] = {}
        # Streaks come in the order of the model's rows, but the earliest must begin a group: it names the group.
        for streak in sorted(streaks, key=_by_begin):
            group, kind = self._group_for(rule, streak)
            group.add(streak)
            if kind is not None:
                changed.setdefault(group.number, kind)
        return changed

    def _group_for(self, rule: str, streak: Streak) -> tuple[Group, EventKind | None]:
        of_rule = [group for group in self._of_rules if group.rule == rule]
        known = next((group for group in of_rule if streak.row in group.members), None)
        if known is not None:
            return known, "again" if known.is_over is not None else None
        near = [group for group in of_rule if group.is_over is None and abs(group.first - streak.first) <= TOGETHER]
        if near:
            return min(near, key=lambda group: (abs(group.first - streak.first), group.number)), "grown"
        new = Group(rule, len(self.groups) + 1)
        self.groups.append(new)
        return new, "new"

    def end(self, rule: str, streaks: Iterable[Streak]) -> dict[int, EventKind]:
        """End streaks; returns the groups that are over, by their numbers."""
        changed: dict[int, EventKind] = {}
        for streak in streaks:
            for group in self._of_rules:
                if group.rule == rule and group.members.get(streak.row) is streak:
                    group.end(streak)
                    if group.is_over is not None:
                        changed[group.number] = "over"
        return changed

    def joined(self, rule: str, streaks: Iterable[Streak]) -> list[Streak]:
        """Loaded streaks of a rule; a streak of a finding is replaced by the object that the finding holds."""
        held = {
            (s.row, s.tensor): s for g in self._of_rules if g.rule == rule for s in g.members.values() if s.row not in g.ended
        }
        return [held.get((each.row, each.tensor), each) if each.is_confirmed else each for each in streaks]

    def state(self) -> list[Any]:
        """All groups as plain values."""
        return [group.state() for group in self.groups]

    @classmethod
    def from_state(cls, state: Iterable[Mapping[str, Any]]) -> Groups:
        """The groups of `state`; raises KeyError, ValueError or TypeError if the state is damaged."""
        groups = cls()
        groups.groups = [Given.from_state(each) if "given" in each else Group.from_state(each) for each in state]
        if [group.number for group in groups.groups] != list(range(1, len(groups.groups) + 1)):
            raise ValueError("findings must have the numbers 1, 2, …")
        return groups
