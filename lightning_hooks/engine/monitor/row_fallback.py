"""The fallback for tensors of modules that the compiled writer does not write into the table of a monitor."""

from __future__ import annotations

from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING
from weakref import ref

from torch import Tensor

from lightning_hooks.stats.kernels import FallbackWriter
from lightning_hooks.stats.measurement import Measurement

if TYPE_CHECKING:
    from lightning_hooks.engine.monitor.observer import Observer


class RowFallback(FallbackWriter):
    """Takes the tensors that the compiled writer does not write into the table of an observer.

    `direct` tells the compiled writer whether it may write: not in the first step, nor after a failure. It counts its `calls`
    and `nanoseconds` here; the time of this fallback is in the observer's account.
    """

    def __init__(self, observer: Observer) -> None:
        self.direct = False
        self._observer = ref(observer)  # which owns this
        self._merging = RLock()  # threads may call modules; a statistic of a user's may call one within

    def __call__(self, row: int, tensor: Tensor, /) -> None:
        """Measure a tensor and merge it into a row."""
        self.take(row, Measurement(tensor))

    def take(self, row: int, look: Measurement) -> None:
        """Merge a measurement into a row."""
        observer = self._observer()
        assert observer is not None, "hooks are gone before their observer"
        with self._merging:
            self.calls += 1
            if observer.execution_order is not None:
                observer.execution_order.append(row)
                with suppress(RuntimeError):  # a nested tensor has none
                    observer.shapes.setdefault(row, tuple(look.tensor.shape))
            with observer.account:
                observer.take(row, look, last=False)

    def take_cost(self) -> tuple[float, int]:
        """Seconds in the compiled writer, and calls of all hooks, since the last time this was asked for."""
        seconds, calls = self.nanoseconds * 1e-9, self.calls
        self.nanoseconds = self.calls = 0
        return seconds, calls
