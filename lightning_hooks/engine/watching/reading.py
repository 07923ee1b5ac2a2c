"""Reading: the turn of one owner of a table, in which is read what depends on the order of callbacks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from torch.optim import Optimizer

from lightning_hooks.engine.participants.participant import ModuleRule, Participant, PhaseMemo
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.hooks import Action, Handles, HookSwitch
from lightning_hooks.plan.rows import WHOLE
from lightning_hooks.rules.patterns import Target


class Reading(Participant):
    """Reads tensors of modules, and parameters and gradients before a step, in the turn of one owner.

    Args:
        observer: reads the rest; it joins the hook manager before its readings.
        share: of the owner.
        names_modules: whether a module that is not called is a surprise, of which a warning tells.
    """

    def __init__(self, observer: Observer, share: Share, *, names_modules: bool = True) -> None:
        self.observer = observer
        self.share = share
        self.acts_before = observer.reads_before_step
        self.graph_key: Hashable = observer.graph_key
        self._names_modules = names_modules and observer.stage == "train"

    @property
    def reports(self) -> bool:  # type: ignore[override]
        """Whether transforms report into the views of this owner."""
        return self.observer.stage == "train" and self.share.publisher is not None and not self.share.stopped

    @property
    def reports_now(self) -> bool:
        """Whether transforms report into the view of the step under way."""
        return self.reports and not self.share.is_between

    @property
    def is_absent(self) -> bool:
        """Whether the callback was removed from the list of its Trainer; nothing of it is then due."""
        return self.share.is_absent

    @is_absent.setter
    def is_absent(self, value: bool) -> None:
        self.share.is_absent = value

    def step_key(self, step: int, stage: str) -> Hashable | None:
        # The observer was asked before its readings, so it knows what is due.
        is_due = stage == self.observer.stage and self.share.part.number in self.observer.due_shares
        return self.observer.demands if is_due else None

    def note_cost(self, own: float, common: float, wall: float | None) -> None:
        overhead = self.share.overhead
        if overhead is not None:
            seconds, calls = self.observer.cost_of(self.share.part.number)
            overhead.note(own + common + seconds, wall, calls)

    def joined(self, switch: HookSwitch, handles: Handles) -> None:
        self.share.account = self.account

    def left(self) -> None:
        self.share.is_absent = True

    def all_targets(self) -> Iterable[Target[Any]]:
        return (row.target for row in self.share.plan.rows if row.tensor not in WHOLE)

    def actions(self, key: Any) -> Iterable[Action]:
        return self.observer.actions_of_turn(self.share.part.number, key)

    def module_rules(self, key: Any = None) -> Iterable[ModuleRule]:
        if self._names_modules and not self.share.stopped:
            due = None if key is None else self.share.part.schedules(key)
            for is_written in (True, False):
                targets = self.share.watched(due, is_written=is_written)
                yield ModuleRule(f"{self.share.label}watch", targets, is_written=is_written)

    def before_step(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        self.observer.read_before_step(self.share.part.number, optimizer, memo)
