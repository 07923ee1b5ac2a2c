"""What participants do around the steps of optimizers, in one training step."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch.optim import Optimizer

from lightning_hooks.engine.participants.participant import Active, Participant, PhaseMemo, warn_unseen


class OptimizerPhases:
    """Runs the phases of the participants that act, and keeps by optimizer what these have done in the step under way."""

    def __init__(self) -> None:
        self._memos: dict[Optimizer, PhaseMemo] = {}
        self._has_warned_unseen = False

    @property
    def has_begun(self) -> bool:
        """Whether a phase has run in the step under way."""
        return bool(self._memos)

    def forget(self) -> None:
        """End the step."""
        self._memos.clear()

    def before_step(self, active: Active, participant: Participant, optimizer: Optimizer) -> None:
        """Run `before_step` of one participant that acts.

        Args:
            active: all participants that act.
            participant: one of them.
            optimizer: steps next.
        """
        memo = self._memos.setdefault(optimizer, PhaseMemo())
        # If a participant is called a second time in one step, LBFGS runs its closure again: let all participants act again.
        if participant in memo.acted:
            memo.acted.clear()
            memo.skipped = False
        if not memo.acted:
            for each, _ in active:
                if each.serves_all and each is not participant:
                    each.before_step(optimizer, memo)
        memo.acted.append(participant)
        with participant.account:
            participant.before_step(optimizer, memo)
            if participant in memo.waiting:
                memo.waiting.remove(participant)
                participant.before_update(optimizer, memo)

    def run(self, active: Active, name: str, optimizer: Optimizer, has_closure: bool) -> None:
        """Run another phase of every participant that acts.

        Args:
            active: the participants that act.
            name: of the phase.
            optimizer: whose step it is.
            has_closure: whether the step has a closure: `before_update` then waits for the `before_step` inside it.
        """
        memo = self._memos.setdefault(optimizer, PhaseMemo())
        participants = [participant for participant, _ in active]
        if name == "before_update" and has_closure:
            memo.waiting = participants
            return
        if name == "after_update" and not memo.acted and not self._has_warned_unseen:
            self._has_warned_unseen = warn_unseen(optimizer, participants, bool(memo.waiting))
        for participant in participants:
            kind: Any = type(participant)
            if _has_phase(kind, name):
                with participant.account:
                    getattr(participant, name)(optimizer, memo)


@cache
def _has_phase(kind: Any, name: str) -> bool:
    """Whether a class does anything in a phase, whose time is then noted."""
    return getattr(kind, name) is not getattr(Participant, name)
