"""Reporter: the consumer that diagnoses each training step, writes what it finds, tells it once, and asks for actions."""

from __future__ import annotations

import shlex
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from lightning_hooks.errors import HooksError, RuleError, printable, shortened, shown_path
from lightning_hooks.health.actions import Action, Actions
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.finding import Event, Finding
from lightning_hooks.health.journal import Journal
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.telling import Outlet, Teller
from lightning_hooks.health.text import as_text, block_of_finding
from lightning_hooks.health.webhook import Webhook
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.consumer import EveryStepConsumer
from lightning_hooks.records.run_context import RunContext
from lightning_hooks.records.step_view import StepView


class HealthError(HooksError, RuntimeError):
    """A finding ends the training, because an action says `raise`."""


class Reporter(EveryStepConsumer):
    """Diagnoses a run.

    Args:
        diagnosis: the rules and what they have found.
        actions: what to do about new findings.
        outlet: the terminal and the loggers of the run.
        writes: whether it writes files into the folder of the run.

    Attributes:
        error: of an action `raise`; whoever drives the run raises it at the end of the step.
        end: the number of the step that would come next, set by whoever drives the run: the last steps may have no view. None
            if it is not known.
    """

    def __init__(self, diagnosis: Diagnosis, actions: Actions, outlet: Outlet, *, writes: bool = True) -> None:
        self.diagnosis = diagnosis
        self.error: HealthError | None = None
        self.end: int | None = None
        self._actions = actions
        self._outlet = outlet
        self._writes = writes
        self._journal: Journal | None = None
        self._run: RunContext | None = None
        self._is_first = True
        self._teller = Teller(diagnosis, outlet, self._warns)
        self._acted: set[int] = set()
        self._webhooks: dict[str, Webhook] = {}
        self._stopped_by: str | None = None  # the error that ended the diagnosis
        self._has_ended = False

    @override
    def start(self, rows: RowIndex, run: RunContext) -> None:
        """Open the journal in the folder of the run, on the first rank, and note that a fit begins."""
        self._run = run
        self._is_first = run.facts.rank == 0
        if self._is_first and self._writes and run.folder is not None:
            self._journal = Journal(run.folder)
            # Readers ignore the events before the last `begin`, so repeat the findings and causes of a resumed fit after it.
            self._journal.write([Event("begin", self.diagnosis.evidence.step + 1, time=time.time()), *self._known()])

    @override
    def consume(self, view: StepView) -> None:
        """Diagnose a training step. An error ends the diagnosis with a warning, and the training goes on."""
        if self._stopped_by is None and view.stage == "train":
            self._guarded(self._diagnose, view)

    def _diagnose(self, view: StepView) -> None:
        events = self.diagnosis.add(view)
        if events:
            self._report(events)
        elif self._is_first:
            self._teller.tell_due_causes(view.step)

    def add_checked(self, findings: Iterable[Finding], judged: Collection[str], step: int) -> None:
        """Report what the checks of a first batch find; arguments as of `Diagnosis.add_checked`, the same on all ranks."""
        if self._stopped_by is None:
            self._guarded(lambda: self._report(self.diagnosis.add_checked(findings, judged, step)))

    def _guarded(self, does: Callable[..., None], *args: Any) -> None:
        """Call a method of the reporter. Its error ends the diagnosis with a warning."""
        try:
            does(*args)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = printable(f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
            self._stopped_by = shortened(said, 500)
            warnings.warn(f"the health rules stopped after {self._stopped_by}; training continues", stacklevel=2)

    @override
    def close(self, error: BaseException | None) -> None:
        """Let all rules look once more, write the summary and tell it in one line."""
        self.finish()
        summary = self._summary(error)
        if self._journal is not None:
            self._guarded(self._write_end, self._journal, summary)
            self._journal.close()
        if self._is_first and summary["steps"] and error is None:
            self._teller.tell_line(f"{summary['line']}{self._page()}")
        for webhook in self._webhooks.values():
            webhook.close()

    def _page(self) -> str:
        """How to see the run; empty if nothing of it is in a folder. Without an event file there is a diagnosis and no page."""
        folder = self._run.folder if self._run is not None and self._journal is not None else None
        if folder is None:
            return ""
        command = "Page: lightning-hooks view" if any(folder.glob("*tfevents*")) else "Diagnosis: lightning-hooks doctor"
        return f" {command} {shlex.quote(shown_path(folder))}"

    def finish(self) -> None:
        """Let all rules look at the steps that they have not judged, because the training has ended.

        Call it while the run still does what actions ask for; `close` calls it too.
        """
        is_first_call, self._has_ended = not self._has_ended, True
        if self._stopped_by is None:
            self._guarded(self._finish)
        # close() calls finish() again, when the loggers may be closed already. So keep the findings at the first call only.
        if is_first_call and self._is_first:
            self._teller.keep(has_ended=True)

    def _finish(self) -> None:
        self._report(self.diagnosis.finish(self.end))
        if self._is_first:
            self._teller.tell_due_causes(None)

    def _write_end(self, journal: Journal, summary: Mapping[str, Any]) -> None:
        journal.write_summary(summary)
        journal.write([Event("end", max(summary["step"], 0))])

    def _summary(self, error: BaseException | None) -> dict[str, Any]:
        summary = self.diagnosis.summary()
        if self._stopped_by is not None:
            line = f"{summary['line'][:-1]}; the health rules stopped after {self._stopped_by}."
            summary = {**summary, "line": line, "stopped": self._stopped_by}
        return summary if error is None else {**summary, "error": printable(f"{type(error).__name__}: {error}")}

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint: what was found, and what was told."""
        return {
            "diagnosis": self.diagnosis.state_dict(),
            "acted": sorted(self._acted),
            **self._teller.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`.

        Raises:
            RuleError: the state is damaged; the reporter is then unchanged.
        """
        teller = Teller(self.diagnosis, self._outlet, self._warns)
        try:
            diagnosis, acted = state["diagnosis"], {*map(int, state["acted"])}
            teller.load(state)
        except (KeyError, TypeError, ValueError) as error:
            raise RuleError(f"the saved state is damaged: {error}") from error
        self.diagnosis.load_state_dict(diagnosis)
        self._teller, self._acted = teller, acted
        if self._journal is not None:
            self._journal.write(self._known())

    def _known(self) -> list[Event]:
        step = max(self.diagnosis.evidence.step, 0)
        findings = [Event("known", step, finding) for finding in self.diagnosis.findings]
        return findings + [Event("cause", step, cause=cause) for cause in self.diagnosis.causes]

    def _report(self, events: Iterable[Event]) -> None:
        events = list(events)
        if self._journal is not None:
            self._journal.write(events)
        for event in events:
            if event.finding is not None and event.kind in ("new", "raised"):
                self._outlet.note_finding()
                self._act(event.finding, was_note=event.kind == "raised")
        if self._is_first and events:
            self._teller.tell(events)

    def _warns(self, finding: Finding) -> bool:
        return any(action.kind == "warn" for action in self._actions.of(finding))

    def _act(self, finding: Finding, *, was_note: bool) -> None:
        """Do what the user wants about a new finding, and what a warning asks for beyond that once a note has become one."""
        if finding.number in self._acted and not was_note:
            return
        self._acted.add(finding.number)
        done = self._actions.of(replace(finding, severity=Severity.INFO)) if was_note else ()
        for action in self._actions.of(finding):
            if action not in done:
                self._do(action, finding)

    def raise_if_asked(self) -> None:
        """Raise the error that the action `raise` has asked for, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _do(self, action: Action, finding: Finding) -> None:
        if action.kind == "raise":
            self.error = self.error or HealthError(as_text([block_of_finding(finding)]))
        elif action.kind == "focus":
            self._outlet.focus(action.argument)
        elif action.kind in ("call", "notify"):
            self._pass_on(action, finding)
        elif self._run is not None and action.kind in ("stop", "checkpoint"):
            try:
                if action.kind == "checkpoint":
                    self._run.save_checkpoint(_file_name(finding))
                elif not self._has_ended:
                    self._run.stop(printable(finding.message))
            except HooksError as error:
                warnings.warn(printable(f"action {action.kind!r} for {finding.fingerprint}: {error}"), stacklevel=2)

    def _pass_on(self, action: Action, finding: Finding) -> None:
        """Call a user's function on every rank, or post to a webhook from the first one."""
        try:
            if action.kind == "call":
                action.argument(finding)
            elif self._is_first:
                webhook = self._webhooks.setdefault(action.argument, Webhook(action.argument))
                webhook.post({"text": as_text([block_of_finding(finding)]), "finding": finding.to_dict()})
        # The function may raise on this rank alone. Ending the diagnosis here would let it differ from that of the other ranks.
        except Exception as error:
            what = f"action {action.kind!r} for {finding.fingerprint}"
            said = f"{what} failed: {type(error).__name__}: {error}; training continues"
            warnings.warn(printable(said), stacklevel=2)


def _file_name(finding: Finding) -> str:
    """The name of a checkpoint for a finding, which every file system takes."""
    safe = "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "_" for each in finding.fingerprint)
    return f"{safe[:150]}-step{finding.last_step}"
