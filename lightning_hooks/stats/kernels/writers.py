"""Writers, which merge tensors into the rows of a table directly, and the fallbacks that take the tensors that they cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, Protocol

from torch import Tensor

from lightning_hooks.stats.kernels.trail import Order, Trail


class FallbackWriter:
    """The base class of fallbacks, which take the tensors that a writer does not write directly into a table.

    A writer calls its fallback with the row and the tensor if `direct` is False, if the kernel does not measure the tensor, or
    if writing raised. The writer counts its direct writes in the fallback.

    Attributes:
        trail: notes what writers write directly, or only in which order; None for no trail.
        direct: whether writers write directly; read at every call.
        calls: the number of direct writes.
        nanoseconds: the duration of all direct writes.
    """

    trail: Trail | Order | None = None
    direct: bool = False
    nanoseconds: int = 0
    calls: int = 0

    def __call__(self, row: int, tensor: Tensor, /) -> None:
        """Merge a tensor into a row."""
        raise NotImplementedError


class DirectWriter:
    """A function that merges a tensor into a row.

    Args:
        write: merges a tensor directly and returns True, or returns False if the fallback must take the tensor.
        row: the index of the row, for the fallback.
        fallback: takes the other tensors, and counts direct writes.
    """

    __slots__ = ("fallback", "row", "write")

    def __init__(self, write: Callable[[Tensor], bool], row: int, fallback: FallbackWriter) -> None:
        self.write = write
        self.row = row
        self.fallback = fallback

    def __call__(self, tensor: Tensor) -> None:
        begun = perf_counter_ns()
        written = False
        if self.fallback.direct:
            try:
                written = self.write(tensor)
            # Ignore the error: the fallback measures the same tensor, and handles the error there.
            except Exception:
                pass
        if written:
            self.count(begun)
        else:
            self.fallback(self.row, tensor)

    def count(self, begun: int) -> None:
        """Count a direct write in the fallback.

        Args:
            begun: `perf_counter_ns()` before the write.
        """
        fallback = self.fallback
        if isinstance(fallback.trail, Order):
            fallback.trail.note(self.row)
        fallback.nanoseconds += perf_counter_ns() - begun
        fallback.calls += 1


class DeviceRow(Protocol):
    """Measures tensors on a device for a row, without waiting for the device."""

    def __call__(self, tensor: Tensor) -> bool:
        """Measure a tensor for the row, or reject it and return False."""

    def share(self, tensor: Tensor) -> Callable[[Any], bool] | None:
        """Measure a tensor for the row; return a function that merges the measurement into another row, None if rejected."""


class DeviceWriter(DirectWriter):
    """A function that merges a tensor into a row on a device.

    Args:
        write: measures tensors for the row.
        row: the index of the row, for the fallback.
        fallback: takes the other tensors, and counts direct writes.
    """

    __slots__ = ()
    write: DeviceRow

    def __init__(self, write: DeviceRow, row: int, fallback: FallbackWriter) -> None:
        super().__init__(write, row, fallback)


class SharedDeviceWriter:
    """A function that measures a tensor once and merges it into rows of several tables on a device.

    Args:
        writers: one for each row.
        merge: takes a tensor that some writers do not write, with the positions of these writers.
    """

    __slots__ = ("merge", "writers")

    def __init__(self, writers: Sequence[DeviceWriter], merge: Callable[[Sequence[int], Tensor], None]) -> None:
        self.writers = writers
        self.merge = merge

    def __call__(self, tensor: Tensor) -> None:
        left: list[int] = []
        share: Callable[[Any], bool] | None = None
        for position, writer in enumerate(self.writers):
            begun, written = perf_counter_ns(), False
            if writer.fallback.direct:
                try:
                    written = share is not None and share(writer.write)
                    if not written:
                        own = writer.write.share(tensor)
                        written, share = own is not None, own or share
                # Ignore the error: `merge` measures the same tensor, and handles the error there.
                except Exception:
                    pass
            if written:
                writer.count(begun)
            else:
                left.append(position)
        if left:
            self.merge(left, tensor)
