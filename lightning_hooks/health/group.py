"""Group: the rows at which the condition of one rule began at about the same time, which are one finding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from lightning_hooks.health.finding import Finding
from lightning_hooks.health.rule import HealthRule, Severity, Symptom
from lightning_hooks.health.streaks import Place, Streak

_MOST_SYMPTOMS: Final = 5  # symptoms that a finding quotes as its evidence


class Group:
    """The rows of one finding: those at which a rule has found it, and what a check of the same name has found before the run.

    Args:
        rule: the name of the rule, and of the check.
        number: of the finding in its run.
        checked: what the check found; None if no check has found it.

    Attributes:
        harm: the harm that was measured while a pattern held; empty for a fact, and as long as there is none.
        was_fact: whether a symptom that is a fact stood beside it when a look was taken over last.
        learning: the numbers of the loss and the steps when the finding was found; empty if it is not about learning.
        line: the line of the user's code at which the loss is computed; empty if it is not known or not about the loss.
    """

    def __init__(self, rule: str, number: int, checked: Finding | None = None) -> None:
        self.rule, self.number, self.checked = rule, number, checked
        self.members: dict[Place, Streak] = {}
        self.over_since: dict[Place, int] = {}
        self.harm = self.learning = self.line = ""
        self.was_fact = False

    @property
    def rows(self) -> set[str]:
        """The names of all rows."""
        return {*(row for row, _ in self.members), *(self.checked.rows if self.checked is not None else ())}

    @property
    def first(self) -> int:
        """The step at which the earliest row began."""
        begins = [streak.first for streak in self.members.values()]
        return min(begins if self.checked is None else [*begins, self.checked.first_step])

    @property
    def is_over(self) -> int | None:
        """The step from which the condition holds at no row; None while it holds at one.

        A check looks at one step. So if the rule has found the fault too, the rule says when the fault is gone.
        """
        if not self.members:
            return self.checked.is_over if self.checked is not None else None
        return max(self.over_since.values()) if len(self.over_since) == len(self.members) else None

    @property
    def is_fact(self) -> bool:
        """Whether a symptom is a fact, although the rule looks for a pattern."""
        return any(symptom.is_fact for streak in self.members.values() for symptom in streak.symptoms)

    @property
    def has_no_witness(self) -> bool:
        """Whether a rule has found the rows, and neither harm nor a symptom that is a fact stands beside them."""
        return bool(self.members) and not self.harm and not self.is_fact

    def check_again(self, finding: Finding) -> None:
        """The check of a later fit has found the fault: keep the step at which it began."""
        first = finding.first_step if self.checked is None else self.checked.first_step
        if self.is_over is not None:
            first = self.first
            self.members.clear()
            self.over_since.clear()
        self.checked = replace(finding, first_step=first)

    def end_checked(self, step: int) -> bool:
        """The check of a later fit has not found the fault. Returns whether the fault is over with that."""
        was_over = self.is_over is not None
        if self.checked is not None:
            self.checked = replace(self.checked, is_over=step)
        return not was_over and self.is_over is not None

    def add(self, streak: Streak) -> None:
        """Add a row, or one whose condition holds again."""
        before = self.members.get(streak.place)
        if before is not None and before is not streak:
            streak.first = min(streak.first, before.first)
        self.members[streak.place] = streak
        self.over_since.pop(streak.place, None)

    def end(self, streak: Streak) -> None:
        """The condition holds no longer at a row."""
        if self.members.get(streak.place) is streak:
            self.over_since[streak.place] = streak.gone_since

    def finding(self, rule: HealthRule | None, cause: str | None = None) -> Finding | None:
        """The finding as it stands.

        Args:
            rule: the rule; None if the run does not use it, and then the finding is that of the check alone.
            cause: the name of its cause.

        Returns:
            The finding; None if neither the check nor a rule of this run has found it.
        """
        found = self._found(rule, cause) if rule is not None and self.members else None
        checked = self.checked
        if checked is None:
            return found
        if found is None:
            return replace(checked, cause=cause, is_over=self.is_over, number=self.number)
        return replace(
            found,
            rows=tuple(dict.fromkeys([*checked.rows, *found.rows])),
            fingerprint="",
            first_step=self.first,
            last_step=max(checked.last_step, found.last_step),
            severity=max(checked.severity, found.severity, key=lambda severity: severity.rank),
            evidence=(checked.evidence + found.evidence)[:_MOST_SYMPTOMS],
            message=checked.message if checked.first_step <= found.first_step else found.message,
            next_steps=checked.next_steps,
        )

    def _found(self, rule: HealthRule, cause: str | None) -> Finding:
        """What the rule has found."""
        streaks = sorted(self.members.values(), key=by_begin)
        rows = tuple(dict.fromkeys(streak.row for streak in streaks))
        symptoms = sorted(
            (symptom for streak in streaks for symptom in streak.symptoms),
            key=lambda s: (not s.is_fact, -s.excess, s.step, s.row),
        )
        # Quote the first row first, because the message begins with its name.
        symptoms.sort(key=lambda symptom: symptom.row != rows[0])
        evidence = tuple(_one_of_each_place(symptoms))[:_MOST_SYMPTOMS]
        return Finding(
            rule.name,
            rows=rows,
            tensor=streaks[0].tensor,
            tensors=tuple(sorted({streak.tensor for streak in streaks})),
            first_step=streaks[0].first,
            last_step=max(streak.last for streak in streaks),
            severity=Severity.INFO if rule.kind == "pattern" and not self.harm and not self.is_fact else rule.severity,
            evidence=evidence,
            message=_message(rule, rows, evidence),
            next_steps=rule.next_steps,
            source=rule.source,
            cause=cause,
            is_over=self.is_over,
            number=self.number,
            harm=self.harm,
            learning=self.learning,
            line=self.line,
        )

    def state(self) -> dict[str, Any]:
        """The group as plain values."""
        members = [streak.state() for streak in self.members.values()]
        checked = {} if self.checked is None else {"checked": self.checked.to_dict()}
        ended = [[*place, step] for place, step in self.over_since.items()]
        told = {"harm": self.harm, "learning": self.learning, "line": self.line}
        return {"rule": self.rule, "number": self.number, "members": members, "ended": ended, **told, **checked}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Group:
        """The group of `state`; raises KeyError, ValueError or TypeError if the state is damaged."""
        checked = Finding.from_dict(state["checked"]) if "checked" in state else None
        group = cls(str(state["rule"]), int(state["number"]), checked)
        for each in state["members"]:
            streak = Streak.from_state(each)
            group.members[streak.place] = streak
        group.harm, group.learning = str(state["harm"]), str(state.get("learning", ""))
        group.line = str(state.get("line", ""))
        group.over_since = {(str(row), str(tensor)): int(step) for row, tensor, step in state["ended"]}
        group.was_fact = group.is_fact
        if not group.rows or not group.over_since.keys() <= group.members.keys():
            raise ValueError(f"a finding of {group.rule} has no rows, or ends at rows that it does not have")
        return group


def _message(rule: HealthRule, rows: tuple[str, ...], symptoms: tuple[Symptom, ...]) -> str:
    try:
        return str(rule.message(rows, symptoms))
    # message() may be a user's code. If it raises, fall back to the default message: the symptoms are right all the same.
    except Exception:
        return HealthRule.message(rule, rows, symptoms)


def by_begin(streak: Streak) -> tuple[int, float, str]:
    """The order of streaks: the earliest first, then the clearest."""
    return streak.first, -streak.excess, streak.row


def _one_of_each_place(symptoms: Iterable[Symptom]) -> list[Symptom]:
    first: dict[Place, Symptom] = {}
    for symptom in symptoms:
        first.setdefault((symptom.row, symptom.tensor), symptom)
    return list(first.values())
