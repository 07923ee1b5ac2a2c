"""Measures in Python the tensors that neither the compiled writer nor the reader of parameters can write."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING
from weakref import ref

from torch import Tensor

from lightning_hooks.plan.plan import LOSS_SCALED
from lightning_hooks.plan.rows import WHOLE, Due
from lightning_hooks.stats.kernels import FallbackWriter
from lightning_hooks.stats.measurement import Measurement, UnmeasurableError, UnscaledMeasurement
from lightning_hooks.stats.schema import MAX, MIN, NONFINITE
from lightning_hooks.tensor_kinds import TRANSFORMED, held_part, inside_transform, is_sharded

if TYPE_CHECKING:
    from lightning_hooks.engine.watching.observer import Observer
    from lightning_hooks.engine.watching.share import Share


class RowFallback(FallbackWriter):
    """Writes tensors into the table of an observer for the compiled writer.

    `direct` tells the compiled writer whether it may write itself. It is False in the first step of each owner, in which the
    fallback notes the shape and the order of execution of every tensor, and after a failure. The compiled writer counts its
    `calls` and `nanoseconds` in these attributes; the time of the fallback is in the observer's account.
    """

    def __init__(self, observer: Observer) -> None:
        self.direct = False
        self._shapes: dict[int, tuple[int, ...]] = {}  # of modules' tensors when they were first measured, by row
        self._observer = ref(observer)  # weak, because the observer owns this object
        self._noting: list[tuple[Share, Due]] = []  # whose first step it is, and what is due for them
        self._order: list[int] = []  # the rows in the order of their measurements in such a step
        self._unmeasurable: set[str] = set()
        # Several threads may call modules at once. The lock is reentrant, because a user's statistic may itself call a module.
        self._merging = RLock()

    def __call__(self, row: int, tensor: Tensor, /) -> None:
        """Measure a tensor and merge it into a row: the tensor of one of several calls or micro-batches of the step."""
        observer = self._watching
        if observer.skips_capture():
            return
        measurement = Measurement(tensor)
        if row in observer.held and is_sharded(tensor):
            measurement = Measurement(held_part(measurement.tensor))
        with self._merging:
            self.calls += 1
            if self._noting:
                self._order.append(row)
                # Note the shape only if it is known: a nested tensor of strided layout has no shape (torch raises), and the
                # shape of a jagged one holds a symbol.
                with suppress(RuntimeError):
                    if all(isinstance(size, int) for size in measurement.tensor.shape):
                        self._shapes.setdefault(row, tuple(measurement.tensor.shape))
            with observer.account:
                self._write(row, measurement, self._add)
                self._note(row, measurement)

    def put(self, row: int, measurement: Measurement) -> None:
        """Set a row to a measurement, in place of an earlier one of the step."""
        self._write(row, measurement, self._watching.table.measuring.put)

    def begin_step(self, due: Sequence[tuple[Share, Due]]) -> None:
        """Begin a step in which these owners have rows that are due at these schedules."""
        self.note_order()
        self._noting = [(share, schedules) for share, schedules in due if not share.has_order]
        self.direct = not self._noting and not self._watching.failed

    def note_order(self) -> None:
        """After the first step of an owner with a measurement, note the order of execution and the shapes of its rows."""
        rows = self._watching.plan.rows
        for share, due in self._noting if self._order else ():
            row_of, is_due = share.part.row_of, share.part.measured_at(due)
            # Other owners may have had more rows measured in this step.
            measured = [row for row in self._order if row in row_of and is_due[row_of[row]]]
            share.plan.index.set_execution_order([row_of[row] for row in measured if rows[row].tensor not in WHOLE])
            share.shapes.update({row_of[row]: self._shapes[row] for row in measured if row in self._shapes})
            share.has_order = bool(measured)
        self._order = []

    def warn_unmeasurable(self, row: int, error: UnmeasurableError) -> None:
        """Warn of a tensor that cannot be read: once per module or parameter, and once in all inside `torch.func`."""
        about = self._watching.plan.rows[row]
        key = TRANSFORMED if str(error) == TRANSFORMED else about.name
        if key not in self._unmeasurable:
            self._unmeasurable.add(key)
            warnings.warn(f"{about.tensor} of {about.name} is not measured: a {error} has no readable elements", stacklevel=2)

    def take_cost(self) -> tuple[float, int]:
        """Seconds in the compiled writer, and calls of both writers, since the previous call of `take_cost`."""
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
            observer.table.measuring.add(row, measurement, UnscaledMeasurement(measurement, scale))
        else:
            observer.table.measuring.add(row, measurement)

    def _note(self, row: int, measurement: Measurement) -> None:
        if self.trail is None:
            return
        if not self._watching.table.state.is_cpu:
            # The numbers stay on the device, so note only that the row was measured.
            self.trail.note(row)
            return
        if measurement.tensor.is_cuda:
            return
        with suppress(UnmeasurableError, RuntimeError):  # `_write` has warned of it
            moments = measurement.moments.tolist()
            self.trail.note(row, moments[MIN], moments[MAX], moments[NONFINITE], measurement.abs_min)

    def _write(self, row: int, measurement: Measurement, write: Callable[[int, Measurement], None]) -> None:
        observer = self._watching
        if observer.failed and not is_sharded(measurement.tensor):
            return
        try:
            write(row, measurement)
        except UnmeasurableError as error:
            self.warn_unmeasurable(row, error)
        except Exception as error:
            # Inside a transform of `torch.func`, an operation may raise any error, for example in a user's statistic.
            if inside_transform(measurement.tensor):
                self.warn_unmeasurable(row, UnmeasurableError(TRANSFORMED))
            else:
                observer.fail_row(row, error)
