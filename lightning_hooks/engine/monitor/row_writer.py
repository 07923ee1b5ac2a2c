"""How tensors of modules get into the table of a monitor: by the compiled writer, or by the fallback in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch import Tensor

from lightning_hooks.stats.kernels import FallbackWriter
from lightning_hooks.stats.measurement import Measurement

if TYPE_CHECKING:
    from lightning_hooks.engine.monitor.observer import Observer


class RowPart:
    """What a monitor does with one tensor of a module: merge it into a row.

    A hook that serves this part alone keeps the function `see`, and not this object: there may be thousands of rows.
    """

    __slots__ = ("observer", "row")
    changes = False

    def __init__(self, observer: Observer, row: int) -> None:
        self.observer = observer
        self.row = row

    @property
    def see(self) -> Callable[[Tensor], None]:
        """A new function that merges a tensor into the row: the compiled writer itself where there is one."""
        return self.observer.table.writer(self.row, self.observer.fallback)

    def absent(self, found: bool, tree: Any) -> None:
        """Note whether a call of the module has the tensor."""
        row = self.observer.plan.rows[self.row]
        self.observer.absent.note(f"watch: {row.tensor!r}", row.name, found, tree)

    def look(self, look: Measurement) -> None:
        """Merge a measurement that several participants share."""
        self.observer.fallback.take(self.row, look)


class RowFallback(FallbackWriter):
    """Takes the tensors that the compiled writer does not write into the table of an observer.

    `direct` tells the compiled writer whether it may write: not in the first step, nor after a failure. It counts its `calls`
    and `nanoseconds` here; the time of this fallback is in the observer's account.
    """

    def __init__(self, observer: Observer) -> None:
        self.direct = False
        self._observer = ref(observer)  # which owns this

    def __call__(self, row: int, tensor: Tensor, /) -> None:
        """Measure a tensor and merge it into a row."""
        self.take(row, Measurement(tensor))

    def take(self, row: int, look: Measurement) -> None:
        """Merge a measurement into a row."""
        observer = self._observer()
        assert observer is not None, "hooks are gone before their observer"
        self.calls += 1
        if observer.execution_order is not None:
            observer.execution_order.append(row)
        with observer.account:
            observer.take(row, look, last=False)

    def take_cost(self) -> tuple[float, int]:
        """Seconds in the compiled writer, and calls of all hooks, since the last time this was asked for."""
        seconds, calls = self.nanoseconds * 1e-9, self.calls
        self.nanoseconds = self.calls = 0
        return seconds, calls
