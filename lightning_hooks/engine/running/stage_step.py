"""The step under way in one stage: its number, who acts in it, and which modules were called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lightning_hooks.engine.participants.participant import Active, Participant

TRAIN = "train"


@dataclass
class StageStep:
    """The current step of one stage. A validation may run inside a training step, so each stage has a step of its own.

    Args:
        number: of the step; None between two steps.
        active: the participants that act, each with its key.
        acting: the ids of these participants.
        called: the ids of the called modules. All steps use the same set object, because installed hooks write into it.
    """

    number: int | None = None
    active: Active = ()
    acting: frozenset[int] = frozenset()
    called: set[int] = field(default_factory=set)

    def begin(self, number: int, stage: str, participants: Iterable[Participant]) -> None:
        """Begin a step: ask each participant whether it acts."""
        active = []
        for participant in participants:
            key = participant.step_key(number, stage)
            if key is not None and (participant.serves_all or not participant.is_absent):
                active.append((participant, key))
        self.number = number
        self._set(tuple(active))
        self.called.clear()

    def end(self) -> Active:
        """End the step. Returns the participants that acted in it."""
        active, self.number = self.active, None
        self._set(())
        return active

    def drop(self, participant: Participant) -> None:
        """Let a participant act no more in this step."""
        self._set(tuple(pair for pair in self.active if pair[0] is not participant))

    def _set(self, active: Active) -> None:
        self.active, self.acting = active, frozenset(id(participant) for participant, _ in active)

    def tell_begin(self, stage: str, participants: Sequence[Participant], reporting: bool) -> None:
        """Tell the participants that act that the step begins, and whether transforms report.

        If a monitor is part of the run, only its events hold the reports of transforms, at the steps in which it acts.

        Args:
            stage: of the step.
            participants: all of the run.
            reporting: whether transforms report if no monitor is part of the run.
        """
        monitored = any(participant.reports for participant in participants if not participant.is_absent)
        reports = any(participant.reports_now for participant, _ in self.active) or (reporting and not monitored)
        assert self.number is not None
        for participant, _ in self.active:
            with participant.account:
                participant.begin_step(self.number, stage, reports and stage == TRAIN)
