"""Which steps of a run its event file holds only in windows, for what commands say of a run that they have read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lightning_hooks.records.step_view import StepView


class SeenWindows:
    """Notes the windows of step views that are read.

    Attributes:
        first: the first step of the first window; None if there was none.
        last: the last step of the last window.
        shortest: the steps in the shortest window.
        longest: the steps in the longest window.

    Example:
        >>> from lightning_hooks.records.step_view import StepWindow
        >>> seen = SeenWindows()
        >>> views = [StepView(3), StepView(7, window=StepWindow(4, count=4)), StepView(15, window=StepWindow(8, count=8))]
        >>> len(list(seen.noting(views))), seen.sentence()
        (3, 'its event file holds steps 4 to 15 only in windows of 4 to 8 steps, merged exactly')
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.last = self.shortest = self.longest = 0

    def noting(self, views: Iterable[StepView]) -> Iterator[StepView]:
        """The same views, noted one by one."""
        for view in views:
            if view.window is not None:
                first, last = view.steps
                length = last - first + 1
                self.shortest = length if self.first is None else min(self.shortest, length)
                self.first = first if self.first is None else min(self.first, first)
                self.last, self.longest = max(self.last, last), max(self.longest, length)
            yield view

    def sentence(self) -> str:
        """What the file holds only in windows, without a full stop; empty if it holds every step."""
        if self.first is None:
            return ""
        lengths = str(self.longest) if self.shortest == self.longest else f"{self.shortest:,} to {self.longest:,}"
        return f"its event file holds steps {self.first:,} to {self.last:,} only in windows of {lengths} steps, merged exactly"

    def facts(self) -> dict[str, dict[str, int]]:
        """The same as an entry of a summary; empty if the file holds every step."""
        if self.first is None:
            return {}
        return {"windows": {"first": self.first, "last": self.last, "shortest": self.shortest, "longest": self.longest}}
