"""Where what is seen of a module lands: one row of an observer's table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from lightning_hooks.engine.plan import Row
from lightning_hooks.stats.measurement import Measurement

if TYPE_CHECKING:
    from lightning_hooks.engine.observer import Observer


class Slot:
    """The place of one row in a chain.

    `see` merges a tensor into the row. Most tensors are written into the table without a call of this object.

    Args:
        observer: whose table.
        row: the tap.
    """

    __slots__ = ("observer", "row", "see")
    changes = False

    def __init__(self, observer: Observer, row: Row) -> None:
        self.observer = observer
        self.row = row
        self.see: Callable[[Tensor], None] = observer.table.writer(row.index, observer, self._see)

    def _see(self, tensor: Tensor) -> None:
        if self.observer.sample is not None and not self.observer.failed:
            write = self.observer.table.writer(self.row.index, _ALWAYS, self._measure)  # made anew: few steps are timed
            self.observer.timed(write, tensor)
        else:
            self._measure(tensor)

    def _measure(self, tensor: Tensor) -> None:
        self.observer.take(self.row, Measurement(tensor), last=False)

    def look(self, look: Measurement) -> None:
        """Merge a measurement into the row."""
        if self.observer.sample is not None:
            self.observer.timed(self.look, look)
            return
        self.observer.take(self.row, look, last=False)


class _Always:
    direct = True


_ALWAYS = _Always()
