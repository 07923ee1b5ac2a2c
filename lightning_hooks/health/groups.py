"""Groups: rows at which the condition of one rule began at about the same time become one finding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lightning_hooks.health.finding import Cause, EventKind, Finding
from lightning_hooks.health.group import Group, by_begin
from lightning_hooks.health.rule import HealthRule, Severity
from lightning_hooks.health.streaks import Change, Streak

TOGETHER: Final = 20
"""Rows whose streaks begin within so many steps of the first one of a finding belong to the finding."""


def _nearest(groups: Iterable[Group], first: int) -> Group | None:
    """The group that is not over and began nearest to a step, if that is near enough for one finding."""
    near = [group for group in groups if group.is_over is None and abs(group.first - first) <= TOGETHER]
    return min(near, key=lambda group: (abs(group.first - first), group.number), default=None)


class Groups:
    """All findings of a run so far.

    The list of findings is kept. The findings that a look changes are replaced in it before somebody reads it again.

    Args:
        rules: the rules of the run by name. Findings of other rules, which a checkpoint may hold, are kept but not listed.
        fitting: returns those of the steps to try that fit the model.

    Attributes:
        of_rule: the findings of each rule that has some, by its name.
    """

    def __init__(self, rules: Mapping[str, HealthRule], fitting: Callable[[Sequence[str]], tuple[str, ...]] = tuple) -> None:
        self._rules = rules
        self._fitting = fitting
        self._groups: list[Group] = []
        self.of_rule: dict[str, list[Group]] = {}
        self._of_row: dict[tuple[str, str], Group] = {}  # by rule and row
        self._findings: dict[int, Finding] = {}  # by number, ascending
        self._changed: set[int] = set()  # numbers of the findings to replace
        self._causes: dict[int, str] = {}  # names of causes by the numbers of their findings

    @property
    def findings(self) -> list[Finding]:
        """The findings of the rules and of the checks, by number."""
        for number in sorted(self._changed):
            group = self._groups[number - 1]
            finding = group.finding(self._rules.get(group.rule), self._causes.get(number))
            if finding is not None:
                self._findings[number] = replace(finding, next_steps=self._fitting(finding.next_steps))
        self._changed.clear()
        return list(self._findings.values())

    def explain(self, causes: Iterable[Cause]) -> None:
        """Name the cause of each finding; None for a finding that no cause explains."""
        self._causes = {number: cause.name for cause in causes for number in cause.numbers}
        for number, finding in self._findings.items():
            name = self._causes.get(number)
            if finding.cause != name:
                self._findings[number] = replace(finding, cause=name)

    def note_learning(self, number: int, text: str) -> None:
        """Keep the numbers of the loss and the steps for the finding with this number."""
        self._groups[number - 1].learning = text
        self._changed.add(number)

    def note_line(self, number: int, line_of: Callable[[Finding], str]) -> None:
        """Keep the line of the user's code for the finding with this number, as far as `line_of` knows it."""
        group = self._groups[number - 1]
        finding = group.finding(self._rules.get(group.rule)) if not group.line else None
        if finding is not None:
            group.line = line_of(finding)
            self._changed.add(number)

    def rule_of(self, number: int) -> str:
        """The name of the rule of the finding with this number."""
        return self._groups[number - 1].rule

    def is_checked(self, number: int) -> bool:
        """Whether a check has found the finding with this number."""
        return self._groups[number - 1].checked is not None

    def _add(self, group: Group) -> None:
        self._groups.append(group)
        self.of_rule.setdefault(group.rule, []).append(group)
        self._note_rows(group)

    def _note_rows(self, group: Group) -> None:
        self._changed.add(group.number)
        for row in group.rows:
            self._of_row.setdefault((group.rule, row), group)

    def add_checked(self, findings: Iterable[Finding], judged: Collection[str], step: int) -> dict[int, EventKind]:
        """Add what checks have found; returns what happened to each of their findings, by its number.

        Args:
            findings: all that the checks have found now.
            judged: the names of the checks that looked; if such a check had a finding that it does not have now, that is over.
            step: the step of their look.
        """
        changed: dict[int, EventKind] = {}
        found_again: list[Group] = []
        known = {group.checked.fingerprint: group for group in self._groups if group.checked is not None}
        for finding in map(self._as_grave_as_the_rule, findings):
            group = known.pop(finding.fingerprint, None) or self._found_by_rule(finding)
            if group is None:
                self._add(Group(finding.rule, len(self._groups) + 1, finding))
                changed[len(self._groups)] = "new"
                continue
            if group.is_over is not None:
                changed[group.number] = "again"
            elif not group.rows.issuperset(finding.rows):
                changed[group.number] = "grown"
            group.check_again(finding)
            found_again.append(group)
            self._note_rows(group)
        for gone in known.values():
            if gone.rule in judged and gone not in found_again and gone.end_checked(step):
                changed[gone.number] = "over"
        self._changed.update(changed)
        return changed

    def _as_grave_as_the_rule(self, finding: Finding) -> Finding:
        """A finding of a check, as grave as the rule of the same name says if that is worse."""
        rule = self._rules.get(finding.rule)
        return replace(finding, severity=rule.severity) if rule and rule.severity.rank > finding.severity.rank else finding

    def _found_by_rule(self, finding: Finding) -> Group | None:
        """The group of a finding that the rule of the same name has found in an earlier fit."""
        groups = [group for group in self.of_rule.get(finding.rule, ()) if group.members]
        of_rows = [group for group in groups if not group.rows.isdisjoint(finding.rows)]
        return next(iter(of_rows), None) or _nearest(groups, finding.first_step)

    def update(self, rule: str, change: Change) -> dict[int, EventKind]:
        """Take over what a look of a rule changed in its streaks; returns what happened to the findings, by their numbers."""
        happened = self._confirm(rule, change.confirmed)
        for streak in change.held:
            group = self._of_row.get((rule, streak.row))
            if group is not None:
                self._changed.add(group.number)
                # A pattern that was a note may become a fact while it holds.
                if group.is_fact and not group.was_fact and not group.harm and self._has_notes(rule):
                    happened.setdefault(group.number, "raised")
                group.was_fact = group.is_fact
        for number in self._end(rule, change.over):
            happened.setdefault(number, "over")
        return happened

    def raise_notes(self, rule: str, happened: Mapping[int, EventKind], harm_to: Callable[[int], str]) -> list[int]:
        """Keep the harm that is measured while a pattern holds; returns the numbers of the findings that are no notes any more.

        A finding that was raised stays so, also after it is over: that is its history.

        Args:
            rule: the name of the rule.
            happened: what the look has changed. A finding that began and ended within it is judged too.
            harm_to: the harm beside a pattern that was seen last at a step, in words; empty if there is none.
        """
        raised = []
        for group in self.of_rule.get(rule, ()) if self._has_notes(rule) else ():
            holds = group.is_over is None or happened.get(group.number) in ("new", "again")
            if group.has_no_witness and holds:
                group.harm = harm_to(max(streak.last for streak in group.members.values()))
                if group.harm:
                    self._changed.add(group.number)
                    raised.append(group.number)
        return raised

    def _has_notes(self, rule: str) -> bool:
        """Whether findings of a rule are notes as long as no harm is measured, and more with it."""
        known = self._rules.get(rule)
        return known is not None and known.kind == "pattern" and known.severity is not Severity.INFO

    def _confirm(self, rule: str, streaks: Iterable[Streak]) -> dict[int, EventKind]:
        """Put streaks into groups; returns what happened to each group, by its number."""
        happened: dict[int, EventKind] = {}
        # Streaks come in the order of the model's rows, but the earliest must begin a group: it names the group.
        for streak in sorted(streaks, key=by_begin):
            group, kind = self._group_for(rule, streak)
            was_note = group.has_no_witness and self._has_notes(rule)
            group.add(streak)
            self._of_row[rule, streak.row] = group
            self._changed.add(group.number)
            if was_note and group.is_fact and happened.get(group.number) != "new":
                happened[group.number] = "raised"
            elif kind is not None:
                happened.setdefault(group.number, kind)
            group.was_fact = group.is_fact
        return happened

    def _group_for(self, rule: str, streak: Streak) -> tuple[Group, EventKind | None]:
        known = self._of_row.get((rule, streak.row))
        if known is not None:
            return known, "again" if known.is_over is not None else None
        near = _nearest(self.of_rule.get(rule, ()), streak.first)
        if near is not None:
            return near, "grown"
        new = Group(rule, len(self._groups) + 1)
        self._add(new)
        return new, "new"

    def _end(self, rule: str, streaks: Iterable[Streak]) -> list[int]:
        """End streaks; returns the numbers of the groups that are over."""
        over = []
        for streak in streaks:
            group = self._of_row.get((rule, streak.row))
            # A later streak of the row and tensor may have taken the place of this streak in its group.
            if group is not None and group.members.get(streak.place) is streak:
                group.end(streak)
                self._changed.add(group.number)
                if group.is_over is not None:
                    over.append(group.number)
        return over

    def joined(self, rule: str, streaks: Iterable[Streak]) -> list[Streak]:
        """Loaded streaks of a rule; a streak of a finding is replaced by the object that the finding holds."""
        groups = self.of_rule.get(rule, ())
        held = {place: each for group in groups for place, each in group.members.items() if place not in group.over_since}
        return [held.get(each.place, each) if each.is_confirmed else each for each in streaks]

    def state(self) -> list[Any]:
        """All groups as plain values."""
        return [group.state() for group in self._groups]

    @classmethod
    def from_state(
        cls,
        rules: Mapping[str, HealthRule],
        state: Iterable[Mapping[str, Any]],
        fitting: Callable[[Sequence[str]], tuple[str, ...]] = tuple,
    ) -> Groups:
        """The groups of `state`; raises KeyError, ValueError or TypeError if the state is damaged."""
        groups = cls(rules, fitting)
        for each in state:
            groups._add(Group.from_state(each))
        if [group.number for group in groups._groups] != list(range(1, len(groups._groups) + 1)):
            raise ValueError("findings must have the numbers 1, 2, …")
        return groups
