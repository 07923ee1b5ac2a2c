"""Where what is seen of a module lands: one row of an observer's table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from lightning_hooks.engine.plan import Row
from lightning_hooks.stats.measurement import Measurement

if TYPE_CHECKING:
    from lightning_hooks.engine.observer import Observer


class Slot:
    """The place of one row in a chain.

    Args:
        observer: whose table.
        row: the tap.
    """

    changes = False

    def __init__(self, observer: Observer, row: Row) -> None:
        self.observer = observer
        self.row = row
        self._write = observer.table.writer(row.index)

    def see(self, tensor: Tensor) -> None:
        """Merge a tensor into the row."""
        if self.observer.sample is not None:
            self.observer.timed(self.see, tensor)
            return
        try:
            if self._write is not None and not self.observer.failed and self._write(tensor):
                return
        except Exception:  # the long way meets it again, and tells the observer
            pass
        self.look(Measurement(tensor))

    def look(self, look: Measurement) -> None:
        """Merge a measurement into the row."""
        if self.observer.sample is not None:
            self.observer.timed(self.look, look)
            return
        self.observer.take(self.row, look, last=False)
