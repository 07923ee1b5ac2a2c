"""The measurements that are made in Python: of what neither the compiled writer nor the reader of parameters writes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING
from weakref import ref

from torch import Tensor

from lightning_hooks.plan.plan import LOSS_SCALED
from lightning_hooks.plan.rows import LOSS
from lightning_hooks.stats.kernels import FallbackWriter
from lightning_hooks.stats.measurement import Measurement, UnmeasurableError, UnscaledMeasurement
from lightning_hooks.tensor_kinds import TRANSFORMED, inside_transform, is_sharded

if TYPE_CHECKING:
    from lightning_hooks.engine.watching.observer import Observer


class RowFallback(FallbackWriter):
    """Takes the tensors that the compiled writer does not write into the table of an observer.

    `direct` tells the compiled writer whether it may write: not in the first step, in which every tensor comes here and tells
    its shape and its place in the order of execution, nor after a failure. The compiled writer counts its `calls` and
    `nanoseconds` here; the time of this fallback is in the observer's account.

    Attributes:
        shapes: of tensors of modules in the first watched step, by row.
    """

    def __init__(self, observer: Observer) -> None:
        self.direct = False
        self.shapes: dict[int, tuple[int, ...]] = {}
        self._observer = ref(observer)  # which owns this
        self._order: list[int] | None = []  # rows of modules as they are measured; None after the first step
        self._unmeasurable: set[str] = set()
        self._merging = RLock()  # threads may call modules; a statistic of a user's may call one within

    def __call__(self, row: int, tensor: Tensor, /) -> None:
        """Measure a tensor and merge it into a row."""
        self.merge(row, Measurement(tensor))

    def merge(self, row: int, measurement: Measurement) -> None:
        """Merge a measurement into a row: one of several calls or micro-batches of the step."""
        observer = self._watching
        with self._merging:
            self.calls += 1
            if self._order is not None:
                self._order.append(row)
                with suppress(RuntimeError):  # a nested tensor of strided layout has none, a jagged one has a symbol in it
                    if all(isinstance(size, int) for size in measurement.tensor.shape):
                        self.shapes.setdefault(row, tuple(measurement.tensor.shape))
            with observer.account:
                self._write(row, measurement, self._add)

    def put(self, row: int, measurement: Measurement) -> None:
        """Set a row to a measurement: the last one of the step counts."""
        self._write(row, measurement, self._watching.table.put)

    def note_order(self) -> None:
        """Note the order of execution when the first step that has measured something ends, and let the writer write."""
        observer = self._watching
        if self._order:
            rows = observer.plan.rows
            observer.plan.index.set_execution_order([row for row in self._order if rows[row].tensor != LOSS])
            self._order = None
        if self._order is None:
            self.direct = not observer.failed

    def warn_unmeasurable(self, row: int, error: UnmeasurableError) -> None:
        """Warn of a tensor that cannot be read, once for each module or parameter; of those inside torch.func once in all."""
        known = self._watching.plan.rows[row]
        key = TRANSFORMED if str(error) == TRANSFORMED else known.name
        if key not in self._unmeasurable:
            self._unmeasurable.add(key)
            warnings.warn(f"{known.tensor} of {known.name} is not measured: a {error} has no readable elements", stacklevel=2)

    def take_cost(self) -> tuple[float, int]:
        """Seconds in the compiled writer, and calls of all hooks, since the last time this was asked for."""
        seconds, calls = self.nanoseconds * 1e-9, self.calls
        self.nanoseconds = self.calls = 0
        return seconds, calls

    @property
    def _watching(self) -> Observer:
        observer = self._observer()
        assert observer is not None, "hooks are gone before their observer"
        return observer

    def _add(self, row: int, measurement: Measurement) -> None:
        observer = self._watching
        scale = observer.loss_scale
        if scale is not None and observer.plan.rows[row].kind in LOSS_SCALED:
            observer.table.add(row, measurement, UnscaledMeasurement(measurement, scale))
        else:
            observer.table.add(row, measurement)

    def _write(self, row: int, measurement: Measurement, write: Callable[[int, Measurement], None]) -> None:
        observer = self._watching
        if observer.failed and not is_sharded(measurement.tensor):
            return
        try:
            write(row, measurement)
        except UnmeasurableError as error:
            self.warn_unmeasurable(row, error)
        except Exception as error:
            if inside_transform(measurement.tensor):  # of a user's statistic, say
                self.warn_unmeasurable(row, UnmeasurableError(TRANSFORMED))
            else:
                observer.fail(error)
