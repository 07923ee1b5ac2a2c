"""What participants do around the steps of optimizers, in one training step."""

from __future__ import annotations

from collections.abc import Iterable

from torch.optim import Optimizer

from lightning_hooks.engine.participants.participant import Participant, PhaseMemo, warn_unseen
from lightning_hooks.engine.running.acting import Acting


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

    def before_step(self, acting: Acting, participants: Iterable[Participant], optimizer: Optimizer) -> None:
        """Run `before_step` of those of some participants that act.

        Args:
            acting: all participants that act.
            participants: whose turn it is, in order.
            optimizer: steps next.
        """
        memo = self._memo_of(optimizer)
        stepping = acting.does["before_step"]
        for participant in participants:
            if participant not in acting.members:
                continue
            memo.has_begun = True
            steps, waits = participant in stepping, participant in memo.waiting
            if steps:
                self._begin_turn(acting, participant, optimizer, memo)
            if steps or waits:
                with participant.account:
                    if steps:
                        participant.before_step(optimizer, memo)
                    if waits:
                        memo.waiting.remove(participant)
                        participant.before_update(optimizer, memo)

    def _begin_turn(self, acting: Acting, participant: Participant, optimizer: Optimizer, memo: PhaseMemo) -> None:
        # If a participant is called a second time in one step, LBFGS runs its closure again: let all participants act again.
        if participant in memo.acted:
            memo.acted.clear()
            memo.skipped = False
        if not memo.acted:
            for each in acting.serving:
                if each is not participant:
                    each.before_step(optimizer, memo)
        memo.acted.append(participant)

    def run(self, acting: Acting, name: str, optimizer: Optimizer, has_closure: bool) -> None:
        """Run another phase of every participant that acts.

        Args:
            acting: the participants that act.
            name: of the phase.
            optimizer: whose step it is.
            has_closure: whether the step has a closure: `before_update` then waits for the `before_step` inside it.
        """
        memo = self._memo_of(optimizer)
        if name == "before_update" and has_closure:
            memo.waiting = [*acting.does[name]]
            return
        if name == "after_update" and not memo.has_begun and not self._has_warned_unseen:
            participants = [participant for participant, _ in acting.active]
            self._has_warned_unseen = warn_unseen(optimizer, participants, bool(memo.waiting))
        for participant in acting.does[name]:
            with participant.account:
                getattr(participant, name)(optimizer, memo)

    def _memo_of(self, optimizer: Optimizer) -> PhaseMemo:
        memo = self._memos.get(optimizer)
        if memo is None:
            memo = self._memos[optimizer] = PhaseMemo()
        return memo
