"""Windows: which views of a training are written when, within the disk budget of its run."""

from __future__ import annotations

from collections import deque
from typing import Final

from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.plan.rows import WHOLE
from lightning_hooks.records.disk_budget import DiskBudget
from lightning_hooks.records.step_view import StepView
from lightning_hooks.records.window import Window

AROUND: Final = 8
"""The watched steps that are written singly before and after a finding is made."""


class Windows:
    """Takes the view of each watched step of a training, and returns the views that are to be written.

    While the budget has room, that is the view itself. Later views are merged into windows. A window ends at a step whose
    number is a multiple of its length, so that the windows of several monitors, and of two runs, have the same steps. The last
    `AROUND` views are held back: if a finding is made, they are written singly.

    Args:
        budget: of the run.
    """

    def __init__(self, budget: DiskBudget) -> None:
        self._budget = budget
        self._held: deque[StepView] = deque()
        self._window = Window()
        self._known_findings = budget.findings
        self._singles = 0  # how many of the next views are written singly
        self._times = self._length = 1  # the length of a window in watched steps, and in steps
        self._saved_at = -(1 << 62)  # the step before the last checkpoint
        self._interval: tuple[RowIndex, int] | None = None

    @property
    def times(self) -> int:
        """How many watched steps a window holds now; 1 if every step is written."""
        return self._times

    def take(self, view: StepView) -> list[StepView]:
        """The views that are to be written when a step has ended: those of single steps, and merged ones."""
        end = None if view.facts is None else view.facts.last_step
        level = self._budget.level(view.step, end)
        out: list[StepView] = []
        if self._has_new_finding():
            out += self.rest(single=True)
            self._singles = self._around()
        self._times, self._length = 1 << level, self._every(view.rows) << level
        if not level:
            return [*out, view]
        if self._singles:
            self._singles -= 1
            return [*out, view]
        self._held.append(view)
        while len(self._held) > AROUND:
            out += self._join(self._held.popleft())
        return out

    def rest(self, *, single: bool = False) -> list[StepView]:
        """The views that are held back, merged as far as they lie in one window; none is held back afterwards.

        Args:
            single: whether to return the last `AROUND` views singly.
        """
        held = [*self._held]
        self._held.clear()
        singles = self._around() if single or self._has_new_finding() else 0
        out: list[StepView] = []
        for view in held[: len(held) - singles]:
            out += self._join(view)
        return [*out, *self._close(), *held[len(held) - singles :]]

    def before_checkpoint(self) -> list[StepView]:
        """As `rest`, but nothing is returned if the last checkpoint was less than a window before.

        So many checkpoints in one window would write as many views as without windows.
        """
        step = self._held[-1].step if self._held else None
        if step is None or not self._budget.room(1) or step - self._saved_at < self._length:
            return []
        self._saved_at = step
        return self.rest()

    def _around(self) -> int:
        """How many views are written singly before and after a finding."""
        return self._budget.room(2 * AROUND) // 2

    def _has_new_finding(self) -> bool:
        """Whether a finding was made since the last call."""
        known, self._known_findings = self._known_findings, self._budget.findings
        return known != self._known_findings

    def _join(self, view: StepView) -> list[StepView]:
        """Add a view to the window; returns the windows that end before it or with it."""
        last, length, out = self._window.last, self._length, []
        if last is not None and (not self._continues(view) or last.step // length != view.step // length):
            out = self._close()
        self._window.add(view)
        return [*out, *self._close()] if (view.step + 1) % length == 0 else out

    def _continues(self, view: StepView) -> bool:
        last = self._window.last
        return last is not None and last.step < view.step and last.rows is view.rows

    def _close(self) -> list[StepView]:
        window, self._window = self._window, Window()
        return [window.view()] if len(window) else []

    def _every(self, rows: RowIndex) -> int:
        """The usual distance of two watched steps, by the schedules of the rules."""
        if self._interval is None or self._interval[0] is not rows:
            asked = (each for each in (*rows.requested_rows, *rows.groups) if each.tensor not in WHOLE)
            intervals = [schedule.every for each in asked for schedule, stats in each.requests if stats and not schedule.steps]
            self._interval = rows, min(intervals, default=1)
        return self._interval[1]
