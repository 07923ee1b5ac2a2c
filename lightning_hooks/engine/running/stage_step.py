"""The step under way in one stage: its number, who acts in it, and which modules were called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from lightning_hooks.engine.participants.participant import Active, Participant
from lightning_hooks.engine.running.acting import NOBODY, Acting

TRAIN = "train"


@dataclass
class StageStep:
    """The current step of one stage. A validation may run inside a training step, so each stage has a step of its own.

    Args:
        number: of the step; None between two steps.
        acting: the participants that act.
        called: the ids of the called modules. All steps use the same set object, because installed hooks write into it.
    """

    number: int | None = None
    acting: Acting = NOBODY
    called: set[int] = field(default_factory=set)

    def begin(
        self, number: int, stage: str, participants: Iterable[Participant], acting_of: Callable[[Active], Acting]
    ) -> None:
        """Begin a step: ask each participant whether it acts.

        Args:
            number: of the step.
            stage: of the step.
            participants: all of the run.
            acting_of: sorts the participants that act.
        """
        active = []
        for participant in participants:
            key = participant.step_key(number, stage)
            if key is not None and (participant.serves_all or not participant.is_absent):
                active.append((participant, key))
        self.number = number
        self.acting = acting_of(tuple(active))
        self.called.clear()

    def end(self) -> Acting:
        """End the step. Returns the participants that acted in it."""
        acting, self.number, self.acting = self.acting, None, NOBODY
        return acting

    def drop(self, participant: Participant) -> None:
        """Let a participant act no more in this step."""
        if participant in self.acting.members:
            self.acting = Acting(tuple(pair for pair in self.acting.active if pair[0] is not participant))

    def tell_begin(self, stage: str, participants: Sequence[Participant], reporting: bool) -> None:
        """Tell the participants that act that the step begins, and whether transforms report.

        If a monitor is part of the run, only its events hold the reports of transforms, at the steps in which it acts.

        Args:
            stage: of the step.
            participants: all of the run.
            reporting: whether transforms report if no monitor is part of the run.
        """
        assert self.number is not None
        reports = stage == TRAIN and self._reports(participants, reporting)
        for participant in self.acting.does["begin_step"]:
            with participant.account:
                participant.begin_step(self.number, stage, reports)

    def _reports(self, participants: Sequence[Participant], reporting: bool) -> bool:
        for participant in self.acting.reporting:
            if participant.reports_now:
                return True
        return reporting and not any(participant.reports and not participant.is_absent for participant in participants)
