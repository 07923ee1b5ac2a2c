"""The rows of the loss and of the batch, which no hook writes: the driver gives their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from weakref import ref

from torch import Tensor

from lightning_hooks.plan.rows import BATCH, LOSS, Due

if TYPE_CHECKING:
    from lightning_hooks.engine.watching.observer import Observer


class WholeRows:
    """Writes the loss and the batch of a step into the table of an observer.

    Args:
        observer: which owns this object.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = ref(observer)
        self._loss, self._batch = observer.plan.whole_row(LOSS), observer.plan.whole_row(BATCH)
        # By the index of the row and by what is due; None where the row is not.
        self._writers: dict[tuple[int, Due], Callable[[Tensor], None] | None] = {}

    def note_batch(self, tensors: Iterable[Tensor]) -> None:
        """Merge the real numbers of a batch into the row of the batch, before the batch is used."""
        if self._batch is not None:
            for tensor in tensors:
                if tensor.is_floating_point():
                    self._write(self._batch, tensor)

    def note_loss(self, loss: Tensor, batches: int = 1) -> None:
        """Merge a loss into the row of the loss, before its backward.

        Args:
            loss: as it is differentiated: multiplied by the loss scale, and divided by the batches of an optimizer's step.
            batches: the number of these batches.
        """
        if self._loss is not None:
            self._write(self._loss, loss, batches)

    def _write(self, row: int, tensor: Tensor, times: int = 1) -> None:
        observer = self._observer()
        assert observer is not None, "the observer owns this object"
        if observer.failed:
            return
        key, fallback = (row, observer.demands), observer.fallback
        with observer.account, observer.guard:
            if key not in self._writers:
                is_due = observer.plan.rows[row].due(observer.demands)
                self._writers[key] = observer.table.writer(row, fallback, ()) if is_due else None
            write = self._writers[key]
            if write is not None:
                cost = fallback.calls, fallback.nanoseconds
                write(tensor.detach() if times == 1 else tensor.detach() * times)
                # Restore the counters, which stand for calls of hooks: no hook was called, and `account` has measured the time.
                fallback.calls, fallback.nanoseconds = cost
