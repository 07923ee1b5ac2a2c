"""Where what is seen of a module lands: one row of an observer's table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch import Tensor

from lightning_hooks.stats.kernels import FallbackWriter
from lightning_hooks.stats.measurement import Measurement

if TYPE_CHECKING:
    from lightning_hooks.engine.monitor.observer import Observer


class RowVisitor:
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

    def absent(self, found: bool, tree: Any) -> None:
        """Note whether a call of the module has the tensor."""
        row = self.observer.plan.rows[self.row]
        self.observer.absent.note(f"watch: {row.tensor!r}", row.name, found, tree)

    def look(self, look: Measurement) -> None:
        """Merge a measurement into the row."""
        self.observer.detour.take(self.row, look)


class Detour(FallbackWriter):
    """The way of tensors that are not written straight into the table of an observer.

    `direct` says whether they may be: not in the first step, nor after a failure. What either way costs is counted: `calls` of
    all hooks, and the time, in `nanoseconds` where tensors are written straight and in the observer's account where they come
    here.

    Args:
        observer: whose table.
    """

    def __init__(self, observer: Observer) -> None:
        self.direct = True
        self._observer = ref(observer)  # which may own this

    def __call__(self, row: int, tensor: Tensor, /) -> None:
        """Measure a tensor and merge it into a row."""
        self.take(row, Measurement(tensor))

    def take(self, row: int, look: Measurement) -> None:
        """Merge a measurement into a row."""
        observer = self._observer()
        assert observer is not None, "hooks are gone before their observer"
        self.calls += 1
        if observer.ran is not None:
            observer.ran.append(row)
        with observer.account:
            observer.take(row, look, last=False)

    def spent(self) -> tuple[float, int]:
        """Seconds of writing straight, and calls of hooks; both begin anew."""
        seconds, calls = self.nanoseconds * 1e-9, self.calls
        self.nanoseconds = self.calls = 0
        return seconds, calls
