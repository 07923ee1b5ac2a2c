"""Where what is seen of a module lands: one row of an observer's table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import ref

from torch import Tensor

from lightning_hooks.stats.kernels import Way
from lightning_hooks.stats.measurement import Measurement

if TYPE_CHECKING:
    from lightning_hooks.engine.observer import Observer


class Slot:
    """The place of one row in a chain.

    Who looks alone keeps what `see` is, and not this object: there may be thousands of rows.

    Args:
        observer: whose table.
        row: the index of the tap.
    """

    __slots__ = ("observer", "row")
    changes = False

    def __init__(self, observer: Observer, row: int) -> None:
        self.observer = observer
        self.row = row

    @property
    def see(self) -> Callable[[Tensor], None]:
        """A function, made anew, that merges a tensor into the row, straight where that can be."""
        return self.observer.table.writer(self.row, self.observer.detour)

    def look(self, look: Measurement) -> None:
        """Merge a measurement into the row."""
        if self.observer.ran is not None:
            self.observer.ran.append(self.row)
        if self.observer.sample is not None:
            self.observer.timed(self.look, look)
            return
        self.observer.take(self.row, look, last=False)


class Measuring(Way):
    """The way into a row by a measurement.

    Args:
        observer: whose table.
    """

    def __init__(self, observer: Observer) -> None:
        self.direct = True
        self._observer = ref(observer)  # which may own this

    @property
    def observer(self) -> Observer:
        """Whose table."""
        observer = self._observer()
        assert observer is not None, "hooks are gone before their observer"
        return observer

    def __call__(self, row: int, tensor: Tensor, /) -> None:
        """Measure a tensor and merge it into a row."""
        self.observer.take(row, Measurement(tensor), last=False)


class Detour(Measuring):
    """The way of tensors that are not written straight into the table of an observer.

    `direct` says whether they may be: not where that is timed, not in the first step, nor after a failure.
    """

    def __call__(self, row: int, tensor: Tensor, /) -> None:
        """Merge a tensor into a row; time it where the step is one that is timed."""
        observer = self.observer
        if observer.ran is not None:
            observer.ran.append(row)
        if (observer.sample is not None or observer.ran is not None) and not observer.failed:
            write = observer.table.writer(row, Measuring(observer))  # made anew: few steps are such
            if observer.sample is None:
                write(tensor)
            else:
                observer.timed(write, tensor)
        else:
            super().__call__(row, tensor)
