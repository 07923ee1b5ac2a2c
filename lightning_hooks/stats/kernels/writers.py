"""Writers, which merge tensors into the rows of a table directly, and the fallbacks that take the tensors that they cannot."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from torch import Tensor

from lightning_hooks.stats.kernels.trail import Trail


class FallbackWriter:
    """The base class of fallbacks, which take the tensors that a writer does not write directly into a table.

    A writer calls its fallback with the row and the tensor if `direct` is False, if the kernel does not measure the tensor, or
    if writing raised. The writer counts its direct writes in the fallback.

    Attributes:
        trail: notes what writers write directly, on a device only in which order; None for no trail.
        direct: whether writers write directly; read at every call.
        calls: the number of direct writes.
        nanoseconds: the duration of all direct writes.
    """

    trail: Trail | None = None
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
        fallback, written = self.fallback, False
        if fallback.direct:
            try:
                written = self.write(tensor)
            # Ignore the error: the fallback measures the same tensor, and handles the error there.
            except Exception:
                pass
        if not written:
            fallback(self.row, tensor)
            return
        if fallback.trail is not None:
            fallback.trail.note(self.row)
        fallback.nanoseconds += perf_counter_ns() - begun
        fallback.calls += 1
