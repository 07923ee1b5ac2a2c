"""The rows that the current step of a table measures on request, and the layout of what it measures."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from lightning_hooks.stats.accumulators import Accumulator
from lightning_hooks.stats.sections import Sections


class DueRows:
    """Which rows of accumulators on request are due. At first all rows are, of accumulators in the state of the table.

    Args:
        sections: the layout of the whole state.

    Attributes:
        sections: the layout of the part of the state that the step measures.

    Example:
        >>> from lightning_hooks.stats.accumulators import BUILT_IN, AccumulatorRows
        >>> due = DueRows(Sections(2, [AccumulatorRows(BUILT_IN[1], (0, 1))]))
        >>> due.set({"histogram": {1}})
        >>> due.has(BUILT_IN[1], 0), due.has(BUILT_IN[1], 1), len(due.sections.kept)
        (False, True, 2)
        >>> due.set({})
        >>> len(due.sections.kept)
        1
    """

    def __init__(self, sections: Sections) -> None:
        self._whole = self.sections = sections
        self._on_request = [each for each in sections.kept if each.accumulator.on_request]
        self._rows: Mapping[str, Collection[int]] = {each.accumulator.name: each.rows for each in self._on_request}
        self._views: dict[Sections, list[Tensor]] = {}

    def set(self, rows: Mapping[str, Collection[int]]) -> None:
        """Set the rows that are due, by the name of the accumulator."""
        self._rows = rows
        any_due = any(rows.get(each.accumulator.name) for each in self._on_request)
        self.sections = self._whole if any_due else self._whole.always

    def of(self, name: str) -> Collection[int]:
        """The rows of the accumulator on request with this name that are due."""
        return self._rows.get(name, ())

    def has(self, accumulator: Accumulator, row: int) -> bool:
        """Whether the step measures the numbers of this accumulator for a row that keeps them."""
        return not accumulator.on_request or row in self.of(accumulator.name)

    def arrays(self, state: Tensor) -> list[Tensor]:
        """The sections that the step measures, as views of the state of the table, which is always the same."""
        if self.sections not in self._views:
            self._views[self.sections] = self.sections.split(state)
        return self._views[self.sections]
