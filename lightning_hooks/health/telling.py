"""Teller: shows causes and findings in the terminal and the loggers of a run, each once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from lightning_hooks.errors import printable, shortened
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.finding import Cause, Event, Finding
from lightning_hooks.health.markdown import markdown_of
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.text import (
    Block,
    block_of_cause,
    block_of_finding,
    block_of_return,
    block_of_rise,
    block_of_withdrawal,
)

CAUSE_AFTER: Final = 40
"""Steps after the beginning of its findings at which a cause that is not certain is shown."""
FACT_AFTER: Final = 10
"""The same of a cause of a fact: its alternatives are facts too, and show within as many steps."""


class Outlet(Protocol):
    """Where a reporter tells what it finds, besides the files."""

    def tell(self, block: Block) -> None:
        """Show a block in the terminal."""

    def tell_line(self, line: str) -> None:
        """Show one sentence on the whole run."""

    def show(self, text: str, step: int) -> None:
        """Show all findings so far, as Markdown."""

    def keep(self, summary: Mapping[str, Any], step: int) -> None:
        """Keep what was found so far, as plain values, where it outlives the run."""

    def note_finding(self) -> None:
        """Keep the steps around the last one in full, because a finding was made."""

    def focus(self, steps: int) -> None:
        """Measure at every one of the next steps."""


class Teller:
    """Shows what a diagnosis finds, on the first rank.

    An error of an outlet is a warning, and that outlet is not used again: the other ranks know nothing of it, so the diagnosis
    must go on.

    Args:
        diagnosis: what is told.
        outlet: the terminal and the loggers of the run.
        warns: whether a finding is shown in the terminal.
    """

    def __init__(self, diagnosis: Diagnosis, outlet: Outlet, warns: Callable[[Finding], bool]) -> None:
        self._diagnosis, self._outlet, self._warns = diagnosis, outlet, warns
        # Pairs of a cause and the number of one of its findings. A cause that returns with other findings is shown again.
        self._told_causes: set[tuple[str, int]] = set()
        self._told: set[int] = set()
        self._severities: dict[str, Severity] = {}  # with which each cause was shown last
        self._told_alone: set[int] = set()
        # The names of causes that were taken back and have not been told again since.
        self._withdrawn: set[str] = set()
        # The names of causes that were told again after that. They are not told a third time, as they may come and go for long.
        self._returned: set[str] = set()
        self._replaced: dict[str, list[str]] = {}  # by the name of a cause, the told causes of its findings before
        self._waiting: dict[str, int] = {}  # the step at which each cause is shown
        self._broken: set[str] = set()

    def tell(self, events: Iterable[Event]) -> None:
        """Show each cause once, and each finding that no cause explains; say which message takes the place of which.

        A fact without a cause is shown at once, and so is a cause that is certain or critical. Another cause waits for the
        rules that may find what explains its findings better.

        Args:
            events: what a look of the diagnosis has changed, with its findings and causes as they now are.
        """
        events = list(events)
        self._tell_withdrawals_of(event.cause for event in events if event.cause is not None and event.kind == "withdrawn")
        self._tell_causes_of(event.cause for event in events if event.cause is not None and event.kind == "cause")
        self._tell_alone(event.finding for event in events if event.finding is not None and event.kind in ("new", "raised"))
        findings = self._diagnosis.findings
        if any(finding.severity is not Severity.INFO for finding in findings):
            text = markdown_of(self._diagnosis.causes, findings)
            self._use("the loggers", self._outlet.show, text, max(self._diagnosis.evidence.step, 0))
        self.keep(has_ended=False)

    def keep(self, *, has_ended: bool) -> None:
        """Let the outlet keep the summary of the diagnosis.

        Args:
            has_ended: whether all rules have looked for the last time.
        """
        summary = {**self._diagnosis.summary(), "has_ended": has_ended}
        self._use("the event file", self._outlet.keep, summary, max(self._diagnosis.evidence.step, 0))

    def tell_due_causes(self, step: int | None) -> None:
        """Show the causes that have waited until a step; None for all."""
        due = {name for name, when in self._waiting.items() if step is None or when <= step}
        by_number = {finding.number: finding for finding in self._diagnosis.findings} if due else {}
        for cause in self._diagnosis.causes if due else ():
            keys = {(cause.name, number) for number in cause.numbers}
            explained = [by_number[number] for number in cause.numbers if number in by_number]
            if cause.name in due and any(map(self._warns, explained)) and not self._is_told_by_checks(cause):
                is_new = self._told_causes.isdisjoint(keys)
                told_as = None if is_new else self._severities.get(cause.name)
                is_worse = told_as is not None and cause.severity.rank > told_as.rank
                self._told_causes |= keys
                self._told.update(cause.numbers)
                if is_worse:
                    self._use("the terminal", self._outlet.tell, block_of_rise(cause, str(told_as), explained))
                elif cause.name in self._withdrawn:
                    self._returned.add(cause.name)
                    self._use("the terminal", self._outlet.tell, block_of_return(cause.name))
                self._withdrawn.discard(cause.name)
                if is_new or is_worse:
                    self._severities[cause.name] = cause.severity
                if is_new:
                    alone = [each.fingerprint for each in explained if each.number in self._told_alone]
                    before = (*self._replaced.pop(cause.name, ()), *dict.fromkeys(alone))
                    self._use("the terminal", self._outlet.tell, block_of_cause(cause, explained, before))
        for name in due:
            del self._waiting[name]

    def _tell_withdrawals_of(self, causes: Iterable[Cause]) -> None:
        """Say that a cause holds no longer, unless another cause of its findings will say that it takes its place."""
        for cause in causes:
            # A cause that has not been shown yet leaves to its successor what it was to take the place of.
            names = [*self._replaced.pop(cause.name, ()), *([cause.name] if self._is_told(cause) else ())]
            successor = next((each for each in self._diagnosis.causes if not set(each.numbers).isdisjoint(cause.numbers)), None)
            if successor is None or self._is_told(successor) or self._is_told_by_checks(successor):
                for name in names:
                    if name not in self._returned:
                        self._withdrawn.add(name)
                        self._use("the terminal", self._outlet.tell, block_of_withdrawal(name))
            elif names:
                self._replaced.setdefault(successor.name, []).extend(names)

    def _is_told(self, cause: Cause) -> bool:
        """Whether a cause has been shown with one of its findings, so that it will not be shown again."""
        return not self._told_causes.isdisjoint((cause.name, number) for number in cause.numbers)

    def _is_told_by_checks(self, cause: Cause) -> bool:
        """Whether a cause explains only what checks of the first batch have found, and what has been shown."""
        return all(number in self._told and self._diagnosis.is_checked(number) for number in cause.numbers)

    def tell_line(self, line: str) -> None:
        """Show one sentence on the whole run."""
        self._use("the terminal", self._outlet.tell_line, line)

    def _tell_causes_of(self, causes: Iterable[Cause]) -> None:
        step = self._diagnosis.evidence.step
        by_number = {finding.number: finding for finding in self._diagnosis.findings}
        for cause in causes:
            explained = [by_number[number] for number in cause.numbers if number in by_number]
            wait = FACT_AFTER if any(map(self._is_fact, explained)) else CAUSE_AFTER
            is_seen_now = not all(self._diagnosis.is_checked(number) for number in cause.numbers)
            is_urgent = cause.confidence == "certain" or (cause.severity is Severity.CRITICAL and is_seen_now)
            due = step if is_urgent else max(step, cause.first_step + wait)
            self._waiting[cause.name] = min(due, self._waiting.get(cause.name, due))
        self.tell_due_causes(step)

    def _tell_alone(self, new: Iterable[Finding]) -> None:
        for finding in new:
            # A check of the first batch speaks before any other rule has looked.
            is_due = finding.cause is None or self._diagnosis.is_checked(finding.number)
            if finding.number not in self._told and self._warns(finding) and is_due:
                self._told.add(finding.number)
                self._told_alone.add(finding.number)
                self._use("the terminal", self._outlet.tell, block_of_finding(finding))

    def _is_fact(self, finding: Finding) -> bool:
        rule = self._diagnosis.rules.get(finding.rule)
        return rule is None or rule.family in ("facts", "numerics")

    def _use(self, name: str, shows: Callable[..., None], *args: Any) -> None:
        if name in self._broken:
            return
        try:
            shows(*args)
        except Exception as error:
            self._broken.add(name)
            said = shortened(printable(f"{type(error).__name__}: {error}"), 500)
            warnings.warn(f"findings are not shown in {name} any more ({said}); the training goes on", stacklevel=2)

    def state(self) -> dict[str, Any]:
        """What was told, as plain values."""
        return {
            "told_causes": [[name, number] for name, number in sorted(self._told_causes)],
            "told": sorted(self._told),
            "told_alone": sorted(self._told_alone),
            "withdrawn": sorted(self._withdrawn),
            "returned": sorted(self._returned),
            "replaced": {name: list(before) for name, before in self._replaced.items()},
            "waiting": dict(self._waiting),
            "severities": {name: str(severity) for name, severity in self._severities.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`.

        Raises:
            KeyError, TypeError, ValueError: the state is damaged; the teller is then unchanged.
        """
        told_causes = {(str(name), int(number)) for name, number in state["told_causes"]}
        told, told_alone = {*map(int, state["told"])}, {*map(int, state["told_alone"])}
        replaced = {str(name): [*map(str, before)] for name, before in dict(state["replaced"]).items()}
        waiting = {str(name): int(step) for name, step in dict(state["waiting"]).items()}
        severities = {str(name): Severity(each) for name, each in dict(state.get("severities", {})).items()}
        withdrawn, returned = ({*map(str, state.get(key, ()))} for key in ("withdrawn", "returned"))
        self._severities, self._withdrawn, self._returned = severities, withdrawn, returned
        self._told_causes, self._told, self._waiting = told_causes, told, waiting
        self._told_alone, self._replaced = told_alone, replaced
