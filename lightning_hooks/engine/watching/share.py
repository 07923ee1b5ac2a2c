"""Share: what one owner has of the table of an observer: its rows, when they are due, and what an error of it does."""

from __future__ import annotations

import warnings
from itertools import compress
from typing import Any

from lightning_hooks.engine.participants.overhead import Account, Overhead
from lightning_hooks.errors import RuleError, StoppedError
from lightning_hooks.plan.joined import Part
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import EVERY_STEP, Due
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.rules import MODULE_TENSORS
from lightning_hooks.rules.patterns import Target
from lightning_hooks.rules.schedule import EveryN


class Share:
    """One owner of the table of an observer.

    A share that has `failed` is measured no more, but it takes part in the exchanges until all ranks know of the failure and it
    is `stopped`: the other ranks would wait for a rank that stopped alone.

    Args:
        part: the rows of the plan of the owner in the table.
        owner: the class of its callback, for messages.
        on_error: `raise`, or `warn`: stop watching, say so once, and let training continue.
        label: how error messages name the callback; empty if they need no name.
        publisher: passes step views to the consumers; None if the owner reads the table itself.
        writes_global: whether its views have the global numbers under `run/`, the overhead included.

    Attributes:
        plan: the plan of the owner.
        is_between: whether only what is measured at every step is due in the step under way.
        factor: how many times longer intervals are than the rules say.
        overhead: the share of the time of steps that the owner takes; None if nobody asks.
        account: takes the time of work for this owner alone; None before it joins a run.
        is_absent: whether the callback was removed from the list of its Trainer.
        has_order: whether the order of execution of its rows is known.
        uncalled_classes: the watched modules that the first watched step did not call, with their classes; None before this
            step.
    """

    def __init__(
        self,
        part: Part,
        *,
        owner: str = "StatsMonitor",
        on_error: str = "raise",
        label: str = "",
        publisher: Publisher | None = None,
        writes_global: bool = True,
    ) -> None:
        self.part = part
        self.plan: Plan = part.plan
        self.owner = owner
        self.on_error = on_error
        self.publisher = publisher
        self.writes_global = writes_global
        self.label = label
        self.failed = False
        self.stopped = False
        self.is_absent = False
        self.has_order = False
        self.factor = 1
        self.overhead: Overhead | None = None
        self.account: Account | None = None
        self.uncalled_classes: dict[str, str] | None = None
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.is_between = False
        self._intervals = part.plan.schedules  # widened
        self._due_of: dict[tuple[bool, ...], tuple[Due, bool]] = {}
        self._focus_until = 0  # the step before which every row is measured
        self._last_asked = -1

    def due(self, step: int) -> Due:
        """The schedules of the plan that are due at a step. Call it once at every step."""
        if self.stopped or self.is_absent:
            return frozenset()
        is_focused = step < self._focus_until
        self._last_asked = step
        chosen = tuple([is_focused or widened.due(step) for widened in self._intervals])
        # Return the same set for the same schedules: a set keeps its hash, and several caches have it as their key.
        if chosen not in self._due_of:
            due: Due = frozenset(compress(self.plan.schedules, chosen))
            self._due_of[chosen] = due, self.plan.is_between(due)
        due, self.is_between = self._due_of[chosen]
        return due

    def widen(self, factor: int) -> None:
        """From the next step on, make every interval `factor` times as long as its rule says; rows keep their schedules."""
        if factor != self.factor:
            self.factor = factor
            if self.overhead is not None:
                self.overhead.restart()
            self._intervals = tuple(map(self._widened, self.plan.schedules))

    def _widened(self, schedule: EveryN) -> EveryN:
        """A schedule with longer intervals; that of what is measured at every step stays."""
        is_of_every_step = self.plan.is_of_every_step and schedule == EVERY_STEP
        return schedule if is_of_every_step else schedule.widened(self.factor)

    def wanted_factor(self) -> int:
        """The factor by which the intervals should be longer than the rules say, by what this rank has measured."""
        return self.factor if self.overhead is None else self.overhead.wanted_factor(self.factor)

    def focus(self, steps: int) -> None:
        """Measure every row at each of the next steps, whatever the schedules say. All ranks must call it at the same step."""
        self._focus_until = max(self._focus_until, self._last_asked + 1 + steps)

    def agree(self, *, stop: bool, factor: int, widens: bool) -> None:
        """Do what ranks requested in an exchange. All ranks must call it at the same step.

        Args:
            stop: whether the owner has failed on some rank.
            factor: the greatest factor that a rank requests.
            widens: whether intervals may be widened, as in training.

        Raises:
            StoppedError: the owner has failed on another rank, and errors are raised.
        """
        # Ignore a factor that is not greater: a rank requested it before the intervals grew.
        if widens and factor > self.factor:
            self.widen(factor)
        if stop:
            self.fail(StoppedError("it failed on another rank"), alone=True)

    def watched(self, due: Due | None = None, *, is_written: bool | None = None) -> list[Target[Any]]:
        """The modules that its rules watch.

        Args:
            due: the schedules that are due; None for any step.
            is_written: only those of rules that a user wrote, or only all others; None for both.
        """
        rows = [row for row in self.plan.rows if row.kind in MODULE_TENSORS and (due is None or row.due(due))]
        if is_written is not None:
            rows = [row for row in rows if (row.index in self.plan.written_rows) is is_written]
        return [row.target for row in rows]

    def note_uncalled(self, called: set[int], due: Due) -> None:
        """Note the watched modules that the first watched step did not call; later steps change nothing.

        Args:
            called: the ids of the modules that the step has called.
            due: the schedules that were due in the step.
        """
        if self.uncalled_classes is None:
            targets = [target for target in self.watched(due) if id(target.value) not in called]
            self.uncalled_classes = {target.name: type(target.value).__name__ for target in targets}

    def fail(self, error: Exception, *, alone: bool) -> None:
        """Handle an error of the owner: raise it, or with `on_error="warn"` stop watching.

        Args:
            error: the error.
            alone: whether no other rank has to learn of it.
        """
        if isinstance(error, RuleError) and self.label and not str(error).startswith(self.label):
            error = RuleError(f"{self.label}{error}")
        if self.on_error == "raise":
            raise error
        self.stopped = self.stopped or alone
        if not self.failed:
            self.failed = True
            cause = "".join((f"{type(error).__name__}: {error}", *(f" ({note})" for note in getattr(error, "__notes__", ()))))
            warnings.warn(f"a {self.owner} stopped watching after {cause}; training continues", stacklevel=2)
