"""Groups: rows at which the condition of one rule began at about the same time become one finding."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from lightning_hooks.health.finding import Cause, EventKind, Finding
from lightning_hooks.health.given import Given
from lightning_hooks.health.rule import HealthRule, Symptom
from lightning_hooks.health.streaks import Change, Streak

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
    """All findings of a run so far.

    The list of findings is kept. The findings that a look changes are replaced in it before somebody reads it again.

    Args:
        rules: the rules of the run by name. Findings of other rules, which a checkpoint may hold, are kept but not listed.
    """

    def __init__(self, rules: Mapping[str, HealthRule]) -> None:
        self._rules = rules
        self._groups: list[Group | Given] = []
        self._of_rule: dict[str, list[Group]] = {}
        self._of_row: dict[tuple[str, str], Group] = {}  # by rule and row
        self._findings: dict[int, Finding] = {}  # by number, ascending
        self._changed: set[int] = set()  # numbers of the findings to replace
        self._causes: dict[int, str] = {}  # names of causes by the numbers of their findings

    @property
    def findings(self) -> list[Finding]:
        """The findings of the rules, and those that were given, by number."""
        for number in sorted(self._changed):
            group, cause = self._groups[number - 1], self._causes.get(number)
            if isinstance(group, Given):
                self._findings[number] = group.finding(cause)
            elif group.rule in self._rules:
                self._findings[number] = group.finding(self._rules[group.rule], cause)
        self._changed.clear()
        return list(self._findings.values())

    def explain(self, causes: Iterable[Cause]) -> None:
        """Name the cause of each finding; None for a finding that no cause explains."""
        self._causes = {number: cause.name for cause in causes for number in cause.numbers}
        for number, finding in self._findings.items():
            name = self._causes.get(number)
            if finding.cause != name:
                self._findings[number] = replace(finding, cause=name)

    def _add(self, group: Group | Given) -> None:
        self._groups.append(group)
        self._changed.add(group.number)
        if isinstance(group, Group):
            self._of_rule.setdefault(group.rule, []).append(group)
            for row in group.members:
                self._of_row.setdefault((group.rule, row), group)

    def give(self, findings: Iterable[Finding], judged: Collection[str], step: int) -> dict[int, EventKind]:
        """Add what another instrument finds; returns what happened to each of its findings, by its number.

        Args:
            findings: all that it finds now.
            judged: the names of its checks that looked; if such a check had a finding that it does not have now, that is over.
            step: the step of its look.
        """
        changed: dict[int, EventKind] = {}
        known = {group.fingerprint: group for group in self._groups if isinstance(group, Given)}
        for finding in findings:
            before = known.pop(finding.fingerprint, None)
            if before is None:
                self._add(Given(replace(finding, number=len(self._groups) + 1)))
                changed[len(self._groups)] = "new"
                continue
            if before.is_over is not None:
                changed[before.number] = "again"
            before.see(finding)
            self._changed.add(before.number)
        for gone in known.values():
            if gone.rule in judged and gone.is_over is None:
                gone.end(step)
                changed[gone.number] = "over"
        self._changed.update(changed)
        return changed

    def update(self, rule: str, change: Change) -> dict[int, EventKind]:
        """Take over what a look of a rule changed in its streaks; returns what happened to the findings, by their numbers."""
        happened = self._confirm(rule, change.confirmed)
        for streak in change.held:
            group = self._of_row.get((rule, streak.row))
            if group is not None:
                self._changed.add(group.number)
        for number in self._end(rule, change.ended):
            happened.setdefault(number, "over")
        return happened

    def _confirm(self, rule: str, streaks: Iterable[Streak]) -> dict[int, EventKind]:
        """Put streaks into groups; returns what happened to each group, by its number."""
        happened: dict[int, EventKind] = {}
        # Streaks come in the order of the model's rows, but the earliest must begin a group: it names the group.
        for streak in sorted(streaks, key=_by_begin):
            group, kind = self._group_for(rule, streak)
            group.add(streak)
            self._of_row[rule, streak.row] = group
            self._changed.add(group.number)
            if kind is not None:
                happened.setdefault(group.number, kind)
        return happened

    def _group_for(self, rule: str, streak: Streak) -> tuple[Group, EventKind | None]:
        known = self._of_row.get((rule, streak.row))
        if known is not None:
            return known, "again" if known.is_over is not None else None
        is_open = (group for group in self._of_rule.get(rule, ()) if group.is_over is None)
        near = [group for group in is_open if abs(group.first - streak.first) <= TOGETHER]
        if near:
            return min(near, key=lambda group: (abs(group.first - streak.first), group.number)), "grown"
        new = Group(rule, len(self._groups) + 1)
        self._add(new)
        return new, "new"

    def _end(self, rule: str, streaks: Iterable[Streak]) -> list[int]:
        """End streaks; returns the numbers of the groups that are over."""
        over = []
        for streak in streaks:
            group = self._of_row.get((rule, streak.row))
            # A later streak of the row, or one of another tensor, may have taken the place of this streak in its group.
            if group is not None and group.members[streak.row] is streak:
                group.end(streak)
                self._changed.add(group.number)
                if group.is_over is not None:
                    over.append(group.number)
        return over

    def joined(self, rule: str, streaks: Iterable[Streak]) -> list[Streak]:
        """Loaded streaks of a rule; a streak of a finding is replaced by the object that the finding holds."""
        groups = self._of_rule.get(rule, ())
        held = {(s.row, s.tensor): s for g in groups for s in g.members.values() if s.row not in g.ended}
        return [held.get((each.row, each.tensor), each) if each.is_confirmed else each for each in streaks]

    def state(self) -> list[Any]:
        """All groups as plain values."""
        return [group.state() for group in self._groups]

    @classmethod
    def from_state(cls, rules: Mapping[str, HealthRule], state: Iterable[Mapping[str, Any]]) -> Groups:
        """The groups of `state`; raises KeyError, ValueError or TypeError if the state is damaged."""
        groups = cls(rules)
        for each in state:
            groups._add(Given.from_state(each) if "given" in each else Group.from_state(each))
        if [group.number for group in groups._groups] != list(range(1, len(groups._groups) + 1)):
            raise ValueError("findings must have the numbers 1, 2, …")
        return groups
