"""Diagnosis: runs the rules on the views of a run, and turns their symptoms into findings and causes."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lightning_hooks.errors import RuleError, printable, shortened, shown
from lightning_hooks.health.accepting import is_accepted
from lightning_hooks.health.advice import fitting
from lightning_hooks.health.causes import CAUSES, CauseRule, explain
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.finding import Cause, Event, EventKind, Finding, stands
from lightning_hooks.health.groups import Groups
from lightning_hooks.health.harm import RECENT, harm_of, jump_of
from lightning_hooks.health.known_cause import KnownCause
from lightning_hooks.health.learning import course_of
from lightning_hooks.health.learning_numbers import is_about_learning, learning_numbers
from lightning_hooks.health.loss_line import line_of
from lightning_hooks.health.past import Past
from lightning_hooks.health.rule import HealthRule, Symptom
from lightning_hooks.health.rule_state import NEVER, RuleState, plan_looks
from lightning_hooks.health.rules import DEFAULT_RULES
from lightning_hooks.health.streaks import Streak
from lightning_hooks.health.summary import summary_of
from lightning_hooks.health.window import WINDOW
from lightning_hooks.records.step_view import StepView


class Diagnosis:
    """Says what is wrong with a training, from the views of its steps.

    All ranks get the same views, so all ranks find the same at the same step.

    Args:
        rules: the rules; the default rules if None. Rules that are off are ignored.
        accept: patterns of findings that are known and no problem: `DeadUnits/encoder.*`, `LossSpike`.
        causes: the table of causes.
        window: the number of steps that rules can read.

    Attributes:
        evidence: what the rules read.

    Raises:
        RuleError: an entry of `rules` is not a rule, or two rules have the same name.

    Example:
        >>> diagnosis = Diagnosis(rules=[])
        >>> diagnosis.add(StepView(0)), diagnosis.summary()["verdict"]
        ([], 'No problem found')
    """

    def __init__(
        self,
        rules: Iterable[HealthRule] | None = None,
        accept: Iterable[str] = (),
        causes: Sequence[CauseRule] = CAUSES,
        window: int = WINDOW,
    ) -> None:
        self.rules = _checked(DEFAULT_RULES if rules is None else rules)
        self.accept = tuple(accept)
        self._cause_rules = causes
        self.evidence = Evidence([need for rule in self.rules.values() for need in rule.needs], window)
        self._end = 0  # the number of the step behind the last one, as far as it is known
        self._groups = Groups(self.rules, self._fitting)
        self._causes: list[Cause] = []
        self._past = Past()
        self._known: KnownCause | None = None
        self._harm = -1, ""  # the last step at which a pattern asked for the harm in the loss, and the answer
        self._ran: set[str] = set()
        self._could_not: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._accepted: set[str] = set()
        self._take_states([RuleState.of(rule) for rule in self.rules.values()])

    def add(self, view: StepView) -> list[Event]:
        """Add the view of the next step; returns what the rules that look at this step have found."""
        if view.step <= self.evidence.step:
            self._go_back(view.step)
        self.evidence.add(view)
        self._end = view.step + 1
        states = self._states_between if view.is_between else self._states
        return self._look([each for each in states if each.due <= view.step], view)

    def _take_states(self, states: list[RuleState]) -> None:
        plan_looks(states, self._failed)
        self._states = states
        self._states_between = [each for each in states if each.looks_between]

    def finish(self, end: int | None = None) -> list[Event]:
        """Let all rules look at the steps that they have not judged, because the run ends.

        Args:
            end: the number of the step that would come next, since the last steps may have no view; None if it is not known.
        """
        self._end = max(self._end, end or 0)
        is_begun = self.evidence.step >= 0
        return self._look([each for each in self._states if each.due < NEVER], None) if is_begun else []

    @property
    def findings(self) -> list[Finding]:
        """All findings of the run so far, in the order in which they were found."""
        return self._groups.findings

    @property
    def causes(self) -> list[Cause]:
        """What explains the findings."""
        return list(self._causes)

    def explain_by(self, known: KnownCause) -> None:
        """From now on, explain the findings of a rule by a cause that somebody else knows, such as a flight recorder."""
        self._known = known

    def add_checked(self, findings: Iterable[Finding], judged: Collection[str], step: int) -> list[Event]:
        """Add what the checks of a first batch have found; returns what is new.

        What a rule finds at the same rows, or near the same step, belongs to the finding of the check with its name.

        Args:
            findings: all that the checks have found now. A finding with the fingerprint of an earlier one is the same finding.
            judged: the names of the checks that looked; an earlier finding of these is over if it is not found now.
            step: the step of their look.
        """
        changed = self._groups.add_checked(findings, judged, step)
        return self._events(changed, step) if changed else []

    def is_checked(self, number: int) -> bool:
        """Whether a check of the first batch has found the finding with this number."""
        return self._groups.is_checked(number)

    def _go_back(self, step: int) -> None:
        """Training went back to an earlier step: its later steps are not new any more."""
        for each in self._states:
            each.judged = min(each.judged, step - 1)
            each.streaks.restart()
        self._harm = -1, ""
        self._past.forget_from(step)
        plan_looks(self._states, self._failed)

    def _look(self, states: Sequence[RuleState], view: StepView | None) -> list[Event]:
        """Let rules look.

        Args:
            states: of the rules.
            view: of the step; None to let the rules look although their conditions hold nowhere at this step.
        """
        changed: dict[int, EventKind] = {}
        step, begin, kinds = self.evidence.step, -1, frozenset[str]()
        for each in states:
            if each.sights and view is not None and each.streaks.holds_nowhere and each.rule.name in self._ran:
                if each.judged + 1 != begin:
                    begin = each.judged + 1
                    kinds = self.evidence.kinds_since(begin)
                if kinds.isdisjoint(each.sights):
                    each.judged = step
                    continue
            changed |= self._look_with(each, view)
        plan_looks(states, self._failed)
        if not changed:
            return []
        if any(self.rules[self._groups.rule_of(number)].family == "loss" for number in changed):
            # A rule on the loss has found something, after patterns that looked before it have asked for harm.
            for each in states:
                changed |= self._raise_notes(each.rule.name, changed)
        for number, kind in changed.items():
            if kind in ("new", "again", "raised") and is_about_learning(self._groups.rule_of(number), self.rules):
                self._groups.note_learning(number, learning_numbers(self.evidence))
            if kind in ("new", "again", "raised"):
                self._groups.note_line(number, self._line_of)
        return self._events(changed, self.evidence.step)

    def _look_with(self, state: RuleState, view: StepView | None) -> dict[int, EventKind]:
        rule, streaks, judged = state.rule, state.streaks, state.judged
        if judged >= self.evidence.step:
            return {}
        # The rule may be a user's code. Whatever it raises, switch off this rule alone and let the training go on.
        try:
            is_quiet = streaks.holds_nowhere
            if is_quiet and view is not None and rule.name in self._ran and rule.can_skip(view):
                return {}
            state.judged = self.evidence.step
            if is_quiet:
                self.evidence.judge_after(judged)
            else:
                self.evidence.judge_after(judged, streaks.standing, streaks.standing_places)
            reason = rule.can_run(self.evidence) or (self._without_loss() if rule.family == "loss" else None)
            symptoms = self._symptoms(rule) if reason is None else []
        except Exception as error:
            self._failed[rule.name] = shortened(printable(f"{type(error).__name__}: {error}"), 300)
            warnings.warn(f"health rule {rule.name} failed and is switched off: {self._failed[rule.name]}", stacklevel=2)
            return {}
        if reason is not None:
            self._could_not[rule.name] = reason
            return {}
        self._ran.add(rule.name)
        if rule.name in self._could_not:
            del self._could_not[rule.name]
        if not symptoms and is_quiet and rule.name not in self._groups.of_rule:
            return {}
        happened = self._groups.update(rule.name, streaks.update(symptoms, self.evidence))
        return happened | self._raise_notes(rule.name, happened)

    def _raise_notes(self, name: str, happened: Mapping[int, EventKind]) -> dict[int, EventKind]:
        """Make notes of a rule warnings if there is harm now; returns what happened to those that were no new findings."""
        raised = self._groups.raise_notes(name, happened, self._harm_to)
        return {number: "raised" for number in raised if happened.get(number) != "new"}

    def _harm_to(self, last: int) -> str:
        """The harm that stands beside a pattern: of the run, or a jump of the loss where the pattern was seen last."""
        if self._harm[0] != self.evidence.step:
            self._harm = self.evidence.step, harm_of(self.evidence)
        # The answer of rules on the loss changes within a look, so it is not kept.
        return self._harm[1] or self._harm_told() or jump_of(self.evidence, last)

    def _line_of(self, finding: Finding) -> str:
        return line_of(finding, self.rules, self.evidence)

    def _fitting(self, next_steps: Sequence[str]) -> tuple[str, ...]:
        return fitting(next_steps, self.evidence)

    def _harm_told(self) -> str:
        """What a rule on the loss says of it for some steps, such as that it has diverged; empty if none says anything."""
        for finding in self.findings:
            rule = self.rules.get(finding.rule)
            if rule is not None and rule.family == "loss" and rule.kind == "numbers" and stands(finding):
                if finding.last_step - finding.first_step >= RECENT and finding.evidence:
                    return finding.evidence[0].text
        return ""

    def _without_loss(self) -> str | None:
        """Why a rule on the loss cannot run where views have a row for the loss, but none was noted."""
        first = self.evidence.start("loss", "mean")
        return "no loss was measured" if first is not None and np.isnan(first).all() else None

    def _symptoms(self, rule: HealthRule) -> list[Symptom]:
        symptoms = rule.check(self.evidence)
        if not hasattr(symptoms, "__iter__"):
            raise _no_symptoms(rule, symptoms)
        return [symptom for symptom in symptoms if self._counts(rule, symptom)]

    def _counts(self, rule: HealthRule, symptom: Symptom) -> bool:
        if not isinstance(symptom, Symptom):
            raise _no_symptoms(rule, symptom)
        if symptom.step < rule.warmup:
            return False
        if self.accept and is_accepted(self.accept, rule.name, symptom.row):
            self._accepted.add(f"{rule.name}/{symptom.row}" if symptom.row else rule.name)
            return False
        return True

    def _events(self, changed: Mapping[int, EventKind], step: int) -> list[Event]:
        of_causes = self._explain(step)
        about = [finding for finding in self.findings if finding.number in changed]
        return [*(Event(changed[finding.number], step, finding) for finding in about), *of_causes]

    def _explain(self, step: int) -> list[Event]:
        """Find the causes of recent findings. A cause whose findings are all long over stands as it was."""
        recent = [each for each in self.findings if each.is_over is None or each.is_over >= step - WINDOW]
        numbers = {finding.number for finding in recent}
        old = {cause.name: cause for cause in self._causes if not numbers.isdisjoint(cause.numbers)}
        new = explain(recent, self.evidence, self._cause_rules, self._past)
        if self._known is not None:
            new = self._known.among(new, recent)
        new = [_after(each, old.values(), {other.name for other in new}) for each in new]
        self._causes = [cause for cause in self._causes if numbers.isdisjoint(cause.numbers)] + new
        self._groups.explain(self._causes)
        names = {cause.name for cause in new}
        events = [Event("withdrawn", step, cause=cause) for name, cause in old.items() if name not in names]
        return events + [Event("cause", step, cause=each) for each in new if _differs(each, old.get(each.name))]

    def summary(self) -> dict[str, Any]:
        """What was looked at and found, as plain values: rules that ran, rules that could not and why, findings and causes.

        `line` is one sentence on the whole run.
        """
        return summary_of(
            self.evidence.step,
            self._end - max(self.evidence.first_step, 0) if self.evidence.step >= 0 else 0,
            ran=[name for name in self.rules if name in self._ran],
            could_not={name: why for name, why in self._could_not.items() if name not in self._ran},
            failed=self._failed,
            accepted=sorted(self._accepted),
            findings=self.findings,
            causes=self._causes,
            course=course_of(self.evidence),
        )

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values, from which a resumed run goes on as if it had not been interrupted."""
        return {
            "end": self._end,
            "evidence": self.evidence.state_dict(),
            "judged": {each.rule.name: each.judged for each in self._states},
            "streaks": {each.rule.name: each.streaks.state() for each in self._states},
            "groups": self._groups.state(),
            "causes": [cause.to_dict() for cause in self._causes],
            "past": self._past.state(),
            "ran": sorted(self._ran),
            "could_not": dict(self._could_not),
            "failed": dict(self._failed),
            "accepted": sorted(self._accepted),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Rules that it does not know start without a past.

        Raises:
            RuleError: the state is damaged; the diagnosis is then unchanged.
        """
        evidence = Evidence(self.evidence.needs, self.evidence.size)
        try:
            end = int(state["end"])
            judged, live = dict(state["judged"]), dict(state["streaks"])
            groups = Groups.from_state(self.rules, state["groups"], self._fitting)
            causes = [Cause.from_dict(cause) for cause in state["causes"]]
            past = Past.from_state(state["past"])
            groups.explain(causes)
            states = [RuleState.of(rule) for rule in self.rules.values()]
            for each in states:
                each.judged = int(judged.get(each.rule.name, -1))
                saved = [Streak.from_state(streak) for streak in live.get(each.rule.name, ())]
                each.streaks.load(groups.joined(each.rule.name, saved))
            ran, accepted = set(map(str, state["ran"])), set(map(str, state["accepted"]))
            could_not, failed = dict(state["could_not"]), dict(state["failed"])
            evidence.load_state_dict(state["evidence"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RuleError(f"diagnosis: the saved state is damaged: {error}") from error
        evidence.ask = self.evidence.ask
        self.evidence, self._end, self._groups = evidence, end, groups
        self._harm, self._past = (-1, ""), past
        self._causes, self._ran, self._could_not, self._failed, self._accepted = causes, ran, could_not, failed, accepted
        self._take_states(states)


def _checked(rules: Iterable[HealthRule]) -> dict[str, HealthRule]:
    """The rules that are on, by name."""
    by_name: dict[str, HealthRule] = {}
    for rule in rules:
        if not isinstance(rule, HealthRule):
            raise RuleError(f"rules must be health rules, got {shown(rule)}")
        if rule.name in by_name:
            raise RuleError(f"rules: two rules have the name {rule.name}; give one of them, or a subclass with another name")
        by_name[rule.name] = rule
    return {name: rule for name, rule in by_name.items() if rule.enabled}


def _differs(new: Cause, old: Cause | None) -> bool:
    return old is None or (new.numbers, new.confidence) != (old.numbers, old.confidence)


def _after(new: Cause, old: Iterable[Cause], names: Collection[str]) -> Cause:
    """A cause with the names of those that explained its findings before, and hold no longer.

    Args:
        new: the cause.
        old: the causes before.
        names: those of the causes that hold now.
    """
    before = [each for each in old if not set(each.numbers).isdisjoint(new.numbers)]
    gone = [name for each in before for name in (*each.replaces, *(() if each.name in names else (each.name,)))]
    return replace(new, replaces=tuple(dict.fromkeys(name for name in gone if name != new.name)))


def _no_symptoms(rule: HealthRule, result: object) -> RuleError:
    return RuleError(f"{rule.name}.check must give symptoms, got {shown(result)}")
