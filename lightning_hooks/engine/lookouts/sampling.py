"""The indices of the samples of each batch, as the sampler of a data loader has given them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from threading import get_ident
from typing import Any, ClassVar
from weakref import ref

from torch.utils.data import BatchSampler


class SampledIndices:
    """Notes the indices that a batch sampler yields, and tells those of each batch that arrives.

    Worker processes read ahead, but a loader returns batches in the order in which it has handed out their indices. So the
    oldest indices that are left belong to the batch that arrives. If batches were left out, more indices are left than when the
    first batch arrived; if two passes over the data run at once, nobody knows to which a batch belongs. Then nothing is known
    until the next pass begins.

    Hooks do not show what a sampler yields, so `BatchSampler.__iter__` is wrapped until `remove` is called.

    Args:
        sampler: of the loader whose batches arrive.
    """

    _watching: ClassVar[list[SampledIndices]] = []

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = ref(sampler)
        self._thread = get_ident()
        self._waiting: deque[Sequence[object]] = deque()
        self._most: int | None = None  # the number of lists that waited when the first batch of the pass arrived
        self._passes = 0  # The number of passes over the data that have begun and not ended.
        self._is_lost = False
        self._watching.append(self)
        _wrap()

    def remove(self) -> None:
        """Give the method of the class back when nobody watches any more; a second call does nothing."""
        if self in self._watching:
            self._watching.remove(self)
        self._waiting.clear()
        if not self._watching:
            _unwrap()

    def is_of(self, sampler: BatchSampler) -> bool:
        """Whether the indices of a sampler are noted in this thread."""
        return self._sampler() is sampler and self._thread == get_ident()

    def begin_pass(self) -> None:
        """The sampler begins again."""
        self._is_lost = self._passes > 0
        self._passes += 1
        self._waiting.clear()
        self._most = None

    def end_pass(self) -> None:
        """The sampler has ended, or its loader was dropped."""
        self._passes -= 1

    def note(self, indices: Any) -> None:
        """The sampler has yielded the indices of one more batch."""
        self._waiting.append(tuple(indices))

    def take(self, count: int) -> Sequence[object] | None:
        """The indices of the batch that arrives; None if they are not known.

        Args:
            count: the number of rows of the batch.
        """
        if not self._waiting:
            return None
        if self._most is None:
            self._most = len(self._waiting)
        self._is_lost = self._is_lost or len(self._waiting) > self._most
        indices = self._waiting.popleft()
        return indices if not self._is_lost and len(indices) == count else None


def indices_of(loader: Any) -> SampledIndices | None:
    """What notes the indices of a loader; None if it has no batch sampler, or one that does not yield as torch's own does.

    Args:
        loader: a `DataLoader`, or anything else.
    """
    sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(sampler, BatchSampler) or not getattr(loader, "in_order", True):
        return None
    return SampledIndices(sampler) if type(sampler).__iter__ is BatchSampler.__iter__ else None


_original: Any = BatchSampler.__iter__
"""What our wrapper calls."""
_is_wrapped = False


def _noting(self: BatchSampler) -> Iterator[list[int]]:
    """Stands for `BatchSampler.__iter__`."""
    watching = [each for each in SampledIndices._watching if each.is_of(self)]
    for each in watching:
        each.begin_pass()
    try:
        for indices in _original(self):
            for each in watching:
                each.note(indices)
            yield indices
    finally:
        for each in watching:
            each.end_pass()


def _wrap() -> None:
    global _original, _is_wrapped
    if not _is_wrapped:
        _original, _is_wrapped = BatchSampler.__iter__, True
        BatchSampler.__iter__ = _noting  # type: ignore[method-assign]


def _unwrap() -> None:
    global _is_wrapped
    # If other code has wrapped the method since, leave its wrapper: it calls ours, which passes the indices on.
    if _is_wrapped and BatchSampler.__iter__ is _noting:
        BatchSampler.__iter__ = _original  # type: ignore[method-assign]
        _is_wrapped = False
